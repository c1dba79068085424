"""Time to the first batch of a wrapped `DataLoader`, compared with the plain one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.case import Case
from benchmarks.ratios import median, ratio
from benchmarks.report import Table
from benchmarks.suites.turns import get_ready, wait_in_turns

if TYPE_CHECKING:
    from benchmarks.plan import Plan
    from benchmarks.remote import Pool

__all__ = ["run"]

_NAMES = ("plain", "off", "sample")
_COLUMNS = ("randomness", "workers", "ms plain", "ms wrapped", "wrapped / plain", "target", "reached")


def run(plan: Plan, pool: Pool) -> list[Table]:
    """Compare cold starts, including workers."""
    note = f"From creating the DataLoader to its first batch, {plan.length:,} samples, after all imports."
    table = Table("Start-up: time to the first batch", _COLUMNS, note=note)
    remotes = {name: pool[name] for name in _NAMES}
    for workers in (0, 2):
        get_ready(Case(plan.length, workers), remotes)
        taken = wait_in_turns(plan.rounds, remotes, resume=False)
        table.rows += [_row(name, workers, taken["plain"], taken[name]) for name in _NAMES[1:]]
    return [table]


def _row(name: str, workers: int, plain: list[float], ours: list[float]) -> tuple[str, ...]:
    return (
        name,
        str(workers),
        f"{median(plain):.1f}",
        f"{median(ours):.1f}",
        str(ratio(ours, plain)),
        "<= 1.0",
        ratio(plain, ours).at_least(1.0),
    )
