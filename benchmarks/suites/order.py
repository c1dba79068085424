"""Orders without data: items per second, memory, and how even batches are."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.ratios import in_turns, median
from benchmarks.report import Table
from resumable.samplers import Blocks

if TYPE_CHECKING:
    from benchmarks.plan import Plan
    from benchmarks.remote import Pool

__all__ = ["run"]

_TASK = "benchmarks.tasks_order:Drawn"
_BATCH = 256
_NOTE = (
    "Sample indices one by one, without data, in processor time; medians. Memory: peak growth over the first "
    "50,000. torch's RandomSampler creates a full permutation, so it is measured with fewer samples."
)
_EVEN_NOTE = (
    "Data sorted into 64 strata, in batches of 256. Chi-square per degree of freedom of the strata's shares "
    "in a batch, averaged over an epoch; 1.00 is a uniform shuffle. The buffers read shards of 1000, in random order. "
    "Formula: 1 + (B - 1) / g * (1 - g / m)."
)


def run(plan: Plan, pool: Pool) -> list[Table]:
    """Compare speed and memory of orders, then how well they mix."""
    return [_speed(plan, pool), _evenness(plan, pool)]


def _speed(plan: Plan, pool: Pool) -> Table:
    cases: list[tuple[str, str, int, dict[str, Any]]] = [
        ("Blocks, 64 per block, window 512", "blocks", plan.large, {}),
        ("Blocks, 64 per block, window 1024", "blocks", plan.large, {"window": 1024}),
        ("Shuffle", "shuffle", plan.large, {}),
        ("torch's RandomSampler", "torch", plan.memory, {}),
        ("shuffle buffer of 1000", "buffer", plan.large, {"size": 1000}),
        ("shuffle buffer of 32,768", "buffer", plan.large, {"size": 32_768}),
    ]
    remotes = {}
    for label, name, length, options in cases:
        remotes[label] = pool[f"order {label}"]
        remotes[label].make(_TASK, name=name, length=length, **options)
    turns = {label: partial(remote.call, "turn", items=plan.batches * 64) for label, remote in remotes.items()}
    taken: dict[str, list[float]] = in_turns(plan.rounds, turns)
    rows: list[tuple[str, ...]] = [
        (label, f"{length:.0e}", f"{1 / median(taken[label]):,.0f}", f"{remotes[label].call('grown'):.1f}")
        for label, _, length, _ in cases
    ]
    pool.rest()
    return Table("Orders alone: items per second and memory", ("order", "samples", "items/s", "MB"), rows, _NOTE)


def _evenness(plan: Plan, pool: Pool) -> Table:
    columns = ("order", "samples held", "chi-square / dof", "formula")
    table = Table("Orders alone: how even batches are", columns, note=_EVEN_NOTE)
    length = min(plan.length, 512_000)
    blocks = [(64, 16), (64, 64), (64, 512), (64, 1024), (256, 64), (256, 512), (1000, 16), (1000, 64)]
    for block, window in blocks if plan.every else blocks[:2]:
        measured = _measured(pool, "blocks", length, block=block, window=window)
        formula = Blocks(length, block=block, window=window).unevenness(_BATCH)
        label = f"Blocks, {block} per block, window {window}"
        table.rows.append((label, f"{block * window:,}", f"{measured:.2f}", f"{formula:.2f}"))
    for size in (1000, 16_000, 32_768):
        measured = _measured(pool, "buffer", length, size=size)
        table.rows.append((f"shuffle buffer of {size:,}", f"{size:,}", f"{measured:.2f}", ""))
    measured = _measured(pool, "shuffle", length)
    table.rows.append(("Shuffle", f"{length:,}", f"{measured:.2f}", "1.00"))
    return table


def _measured(pool: Pool, name: str, length: int, **options: Any) -> float:
    remote = pool["how even"]
    remote.make(_TASK, name=name, length=length, **options)
    return float(remote.call("unevenness"))
