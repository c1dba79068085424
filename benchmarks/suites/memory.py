"""The memory of an order: the memory growth of a process that reads a large dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.contenders import ENTRIES
from benchmarks.report import Table

if TYPE_CHECKING:
    from benchmarks.plan import Plan
    from benchmarks.remote import Pool

__all__ = ["run"]

_COLUMNS = ("loader", "samples", "MB", "target", "reached")
_MEGABYTES = 20


def run(plan: Plan, pool: Pool) -> list[Table]:
    """Measure each loader in a separate process."""
    note = "Peak growth of resident memory while the first batches of a shuffled epoch are read, without workers."
    table = Table("Memory of the order", _COLUMNS, note=note)
    cases = [("sample", plan.memory), ("sample", plan.large), ("sample", plan.large * 1000), ("plain", plan.memory)]
    for name, length in cases:
        remote = pool[f"memory of {name} at {length}"]
        remote.make("benchmarks.tasks_own:Memory", name=name)
        grown = remote.call("grow", length=length, batches=plan.batches)
        reached = "" if name == "plain" else "yes" if grown < _MEGABYTES else "**no**"
        target = "" if name == "plain" else f"< {_MEGABYTES}"
        table.rows.append((ENTRIES[name].label, f"{length:.0e}", f"{grown:.1f}", target, reached))
    return [table]
