"""How batches travel from worker processes: items per second of a wrapped `DataLoader`, by batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.case import Case
from benchmarks.ratios import median, ratio
from benchmarks.report import Table
from benchmarks.suites.throughput import per_second
from benchmarks.suites.turns import read_in_turns

if TYPE_CHECKING:
    from benchmarks.plan import Plan
    from benchmarks.remote import Pool

__all__ = ["run"]

_COLUMNS = (
    "batch",
    "us per item",
    "randomness",
    "items/s plain",
    "items/s wrapped",
    "ratio",
    "us of processor plain",
    "us of processor wrapped",
    "target",
    "reached",
)
_NOTE = (
    "Two workers, batches of 64: integers, or one tensor of that size. Ratio: items per second wrapped / plain, median "
    "of paired turns (smallest-largest). Processor time is for the training process, per batch."
)
_KILO = 1024
# size of a batch in kB, microseconds per item, targets of "off" and of "sample"
_ROWS = (
    (0, 0, 4.0, 2.0),
    (0, 20, 1.5, 1.05),
    (64, 0, 1.8, 1.4),
    (256, 0, 1.0, None),
    (512, 0, 0.98, None),
    (1024, 0, 0.98, None),
    (4096, 0, 0.98, None),
)


def run(plan: Plan, pool: Pool) -> list[Table]:
    """Compare the plain loader with the wrapped one, with and without keys."""
    table = Table("Batches from workers, by their size", _COLUMNS, note=_NOTE)
    remotes = {name: pool[name] for name in ("plain", "off", "sample")}
    for kilobytes, cost, *targets in _ROWS if plan.every else _ROWS[2:3]:
        case = Case(plan.length, workers=2, cost=cost, size=kilobytes * _KILO // 64)
        taken = read_in_turns(plan, case, remotes)
        for name, target in zip(("off", "sample"), targets, strict=True):
            table.rows.append(_row(case, name, taken, target))
    return [table]


def _row(case: Case, name: str, taken: dict[str, dict[str, list[float]]], target: float | None) -> tuple[str, ...]:
    plain, ours = taken["plain"], taken[name]
    wall = ratio(plain["wall"], ours["wall"])
    return (
        f"{case.size * case.batch // _KILO} kB" if case.size else "integers",
        str(case.cost),
        name,
        per_second(case, plain),
        per_second(case, ours),
        str(wall),
        f"{median(plain['processor']):.0f}",
        f"{median(ours['processor']):.0f}",
        f">= {target}" if target else "none",
        wall.at_least(target) if target else "",
    )
