"""The memory of a `DataLoader` and all of its workers, for small and for large datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.contenders import ENTRIES
from benchmarks.report import Table

if TYPE_CHECKING:
    from benchmarks.plan import Plan
    from benchmarks.remote import Pool

__all__ = ["run"]

_COLUMNS = (
    "loader",
    "samples",
    "workers",
    "MB of the training process",
    "MB of a worker",
    "MB of all",
    "more than at 1e+06",
)
_NOTE = (
    "After the first batches of a shuffled epoch, batches of 64. A process: memory that it shares with no other. All: "
    "shared pages count once. torch's RandomSampler lists its permutation in the training process."
)


def run(plan: Plan, pool: Pool) -> list[Table]:
    """Measure each case in a separate process."""
    table = Table("Memory with workers", _COLUMNS, note=_NOTE)
    small, large, huge = 10**6, plan.large, plan.large * 1000
    theirs = plan.memory * 10
    cases = {"sample": (small, large, huge), "plain": (small, theirs)} if plan.every else {"sample": (small, huge)}
    for name, lengths in cases.items():
        for workers in (0, 2, 16) if plan.every else (2,):
            first = 0.0
            for length in lengths:
                found = _measure(pool, name, length, workers, plan.batches)
                first = first or found["all"]
                table.rows.append(
                    (
                        ENTRIES[name].label,
                        f"{length:.0e}",
                        str(workers),
                        f"{found['own']:.1f}",
                        f"{found['worker']:.1f}" if workers else "",
                        f"{found['all']:.0f}",
                        f"{found['all'] - first:.1f}",
                    )
                )
    return [table]


def _measure(pool: Pool, name: str, length: int, workers: int, batches: int) -> dict[str, float]:
    remote = pool[f"memory of {workers} workers of {name} at {length}"]
    remote.make("benchmarks.tasks_scale:Workers", name=name)
    found: dict[str, float] = remote.call("measure", length=length, workers=workers, batches=min(batches, 200))
    pool.drop(f"memory of {workers} workers of {name} at {length}")
    return found
