"""Items per second of a wrapped `DataLoader`, compared with the plain one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.case import Case
from benchmarks.contenders import OURS
from benchmarks.ratios import median, ratio
from benchmarks.report import Table
from benchmarks.suites.turns import read_in_turns

if TYPE_CHECKING:
    from benchmarks.plan import Plan
    from benchmarks.remote import Pool

__all__ = ["run"]

_COLUMNS = (
    "randomness",
    "workers",
    "us per item",
    "items/s plain",
    "items/s wrapped",
    "ratio",
    "ratio by processor time",
    "target",
    "reached",
)
_NOTE = (
    "Ratio: items per second wrapped / plain, median of paired turns (smallest-largest). Processor time is for the "
    "training process, without its workers."
)


def run(plan: Plan, pool: Pool) -> list[Table]:
    """Compare each randomness mode with the plain loader."""
    table = Table("Throughput of wrap(DataLoader) against the DataLoader", _COLUMNS, note=_NOTE)
    remotes = {name: pool[name] for name in ("plain", *OURS)}
    for workers in (0, 2):
        for cost in plan.costs:
            case = Case(plan.length, workers, cost)
            taken = read_in_turns(plan, case, remotes)
            table.rows += [_row(case, name, taken["plain"], taken[name]) for name in OURS]
    return [table]


def _row(case: Case, name: str, plain: dict[str, list[float]], ours: dict[str, list[float]]) -> tuple[str, ...]:
    wall, processor = ratio(plain["wall"], ours["wall"]), ratio(plain["processor"], ours["processor"])
    target = _target(name, case.cost)
    return (
        name,
        str(case.workers),
        str(case.cost),
        per_second(case, plain),
        per_second(case, ours),
        str(wall),
        str(processor),
        f">= {target}" if target else "none",
        wall.at_least(target) if target else "",
    )


def per_second(case: Case, taken: dict[str, list[float]]) -> str:
    """Return the median of the items per second, as text."""
    return f"{case.batch / median(taken['wall']) * 1e6:,.0f}"


def _target(name: str, cost: int) -> float:
    free, other = {"sample": (0.0, 0.9), "passed": (0.6, 0.95)}.get(name, (1.0, 1.0))
    return other if cost else free
