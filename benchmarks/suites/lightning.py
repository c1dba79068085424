"""The cost of the callback in a run of the Lightning Trainer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.ratios import in_turns, median, ratio
from benchmarks.report import Table

if TYPE_CHECKING:
    from benchmarks.plan import Plan
    from benchmarks.remote import Pool, Remote

__all__ = ["run"]

_STEPS = (0.0, 10.0)  # milliseconds
_COLUMNS = ("ms per training step", "us per batch plain", "us per batch resumable", "ratio", "target", "reached")
_NOTE = (
    "`Trainer.fit` on a DataLoader, compared with the wrapped one with ResumableCallback. The step waits busily and "
    "trains a single layer, so the first row is the time of the Trainer itself, including one key per sample (the "
    "default). Ratio: plain / resumable."
)
_BUFFERS = {0: 60.0, 200: 150.0}  # and the target in µs
_STEP_COLUMNS = ("buffers", "us per step plain", "us per step resumable", "us more", "target", "reached")
_STEP_NOTE = (
    "The same with a single layer, buffers of four numbers each, and no keys, so only the callback differs: its hooks "
    "and Lightning's calls of them; RNGs, counters and buffers are kept at every step. More: median of the differences "
    "of paired turns (smallest-largest)."
)
_SAVE_COLUMNS = ("ms save_checkpoint plain", "ms save_checkpoint resumable", "ratio")


def run(plan: Plan, pool: Pool) -> list[Table]:
    """Compare runs in turns."""
    table = Table("Lightning: a run with the callback", _COLUMNS, note=_NOTE)
    saves = Table("Lightning: a checkpoint with the callback", _SAVE_COLUMNS, note="Ratio: plain / resumable.")
    remotes = {name: pool[f"lightning {name}"] for name in ("plain", "resumable")}
    for step in _STEPS:
        batches = max(plan.batches // (4 if step else 1), 2)
        for name, remote in remotes.items():
            remote.make("benchmarks.tasks_lightning:Fit", resumable=name == "resumable", batches=batches, step=step)
        taken = in_turns(plan.rounds, {name: partial(remote.call, "turn") for name, remote in remotes.items()})
        table.rows.append(_row(step, taken["plain"], taken["resumable"]))
    taken = in_turns(plan.rounds, {name: partial(remote.call, "save") for name, remote in remotes.items()})
    plain, ours = taken["plain"], taken["resumable"]
    saves.rows.append((f"{median(plain):.1f}", f"{median(ours):.1f}", str(ratio(plain, ours))))
    return [table, _per_step(plan, remotes), saves]


def _per_step(plan: Plan, remotes: dict[str, Remote]) -> Table:
    """Compare steps that take no time, with keys that take no time."""
    table = Table("Lightning: the callback's part of a step", _STEP_COLUMNS, note=_STEP_NOTE)
    for buffers, target in _BUFFERS.items():
        for name, remote in remotes.items():
            made = {"resumable": name == "resumable", "batches": plan.batches, "step": 0, "buffers": buffers}
            remote.make("benchmarks.tasks_lightning:Fit", **made, randomness="off")
        taken = in_turns(plan.rounds, {name: partial(remote.call, "turn") for name, remote in remotes.items()})
        plain, ours = taken["plain"], taken["resumable"]
        more = sorted(b - a for a, b in zip(plain, ours, strict=True))
        reached = "yes" if median(more) <= target else "within the spread" if more[0] <= target else "**no**"
        spread = f"{median(more):.0f} ({more[0]:.0f}-{more[-1]:.0f})"
        table.rows.append(
            (str(buffers), f"{median(plain):,.0f}", f"{median(ours):,.0f}", spread, f"<= {target:.0f}", reached)
        )
    return table


def _row(step: float, plain: list[float], ours: list[float]) -> tuple[str, ...]:
    compared = ratio(plain, ours)
    target = 0.95 if step else 0.0
    return (
        f"{step:.0f}",
        f"{median(plain):,.0f}",
        f"{median(ours):,.0f}",
        str(compared),
        f">= {target}" if target else "none",
        compared.at_least(target) if target else "",
    )
