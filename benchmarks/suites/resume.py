"""Resuming far into a large epoch against a cold start."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.case import Case
from benchmarks.ratios import in_turns, median, ratio
from benchmarks.report import Table
from benchmarks.suites.turns import get_ready

if TYPE_CHECKING:
    from benchmarks.plan import Plan
    from benchmarks.remote import Pool

__all__ = ["run"]

_COLUMNS = ("samples", "ms cold start", "ms resume at 90 %", "resume / cold", "target", "reached")
_TARGET = 1.2


def run(plan: Plan, pool: Pool) -> list[Table]:
    """Compare the times to the first batch, without workers, because starting them would hide the difference."""
    note = "From creating the loader to its first batch, including load_state_dict; no workers, after all imports."
    table = Table("Resume: time to the first batch at 90 % of an epoch", _COLUMNS, note=note)
    remote = pool["sample"]
    for length in (plan.length, plan.large):
        case = Case(length)
        get_ready(case, {"sample": remote}, case.batches * 9 // 10)
        wait = {resume: partial(remote.call, "wait", resume=resume) for resume in (False, True)}
        taken: dict[bool, list[float]] = in_turns(plan.rounds * 2, wait)
        table.rows.append(_row(length, taken[False], taken[True]))
    return [table]


def _row(length: int, cold: list[float], resumed: list[float]) -> tuple[str, ...]:
    return (
        f"{length:.0e}",
        f"{median(cold):.2f}",
        f"{median(resumed):.2f}",
        str(ratio(resumed, cold)),
        f"<= {_TARGET}",
        ratio(cold, resumed).at_least(1 / _TARGET),
    )
