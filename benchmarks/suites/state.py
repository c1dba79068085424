"""The cost of a state: time and bytes, from a thousand to 10¹² samples."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.ratios import in_turns, median
from benchmarks.report import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.plan import Plan
    from benchmarks.remote import Pool

__all__ = ["run"]

_LENGTHS = (10**3, 10**6, 10**9, 10**12)
_MICROSECONDS, _BYTES = 20, 1000
_COLUMNS = ("samples", "us state_dict", "us load_state_dict", "us ack", "bytes", "reached")
_METHODS = ("save", "load", "acknowledge")


def run(plan: Plan, pool: Pool) -> list[Table]:
    """Measure states of datasets of several lengths, in turns."""
    note = (
        f"Median (smallest-largest) of the turns. Targets: state_dict below {_MICROSECONDS} us, below {_BYTES} bytes. "
        "The bytes are the JSON size at the end of the epoch."
    )
    table = Table("State: time and bytes", _COLUMNS, note=note)
    remote = pool["state"]
    remote.make("benchmarks.tasks_own:StateCost", lengths=_LENGTHS)
    measures = {
        (length, method): partial(remote.call, method, length=length, calls=plan.calls)
        for length in _LENGTHS
        for method in _METHODS
    }
    taken: dict[tuple[int, str], list[float]] = in_turns(plan.rounds, measures)
    for length in _LENGTHS:
        times = [taken[length, method] for method in _METHODS]
        table.rows.append(_row(length, times, remote.call("size", length=length)))
    return [table]


def _row(length: int, times: Sequence[list[float]], size: int) -> tuple[str, ...]:
    reached = median(times[0]) < _MICROSECONDS and size < _BYTES
    return (f"{length:.0e}", *map(_spread, times), str(size), "yes" if reached else "**no**")


def _spread(times: list[float]) -> str:
    return f"{median(times):.1f} ({min(times):.1f}-{max(times):.1f})"
