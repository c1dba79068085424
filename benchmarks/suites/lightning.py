"""What the callback costs in a run of the Lightning Trainer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.ratios import in_turns, median, ratio
from benchmarks.report import Table

if TYPE_CHECKING:
    from benchmarks.plan import Plan
    from benchmarks.remote import Pool

__all__ = ["run"]

_STEPS = (0.0, 10.0)  # milliseconds
_COLUMNS = ("ms per training step", "us per batch plain", "us per batch resumable", "ratio", "target", "reached")
_NOTE = (
    "`Trainer.fit` on a DataLoader, against the same on the wrapped one with ResumableCallback. The step waits "
    "busily and trains a single layer, so the first row is what the Trainer itself takes. Ratio: plain / resumable."
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
    return [table, saves]


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
