"""NVIDIA DALI: wrapped and alone, the cost of a state, and the time to resume."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.ratios import in_turns, median, ratio
from benchmarks.remote import MissingLibraryError
from benchmarks.report import Table

if TYPE_CHECKING:
    from benchmarks.plan import Plan
    from benchmarks.remote import Pool

__all__ = ["run"]

_HOW = ("alone", "wrapped", "saved")
_LABELS = {"wrapped": "wrapped", "saved": "wrapped, a state per batch"}
_OFFSETS = (0.1, 0.9)


def run(plan: Plan, pool: Pool) -> list[Table]:
    """Measure DALI's own iterators on CPUs; if DALI is not installed, the tables say so."""
    tables = [_throughput(plan, pool), _resume(plan, pool)]
    pool.rest()
    return tables


def _throughput(plan: Plan, pool: Pool) -> Table:
    columns = ("iterator", "images", "images/s alone", "images/s", "of alone")
    note = "Two threads, batches of 64, on processors. Images of 224 x 224 pixels, decoded or only read."
    table = Table("DALI's iterators: throughput", columns, note=note)
    for decode in (True, False):
        remotes = {how: pool[f"dali {how}"] for how in _HOW}
        try:
            for how, remote in remotes.items():
                remote.make("benchmarks.tasks_dali:Reading", how=how, files=20_000, warm=plan.lead, decode=decode)
        except MissingLibraryError as missing:
            table.rows.append((f"not installed: {missing}", *[""] * 4))
            return table
        turns = {
            how: partial(remote.call, "turn", batches=plan.batches, seconds=plan.seconds)
            for how, remote in remotes.items()
        }
        taken: dict[str, list[float]] = in_turns(plan.rounds, turns)
        alone = taken["alone"]
        kind = "decoded" if decode else "not decoded"
        table.rows += [
            (label, kind, f"{median(alone):.0f}", f"{median(taken[how]):.0f}", str(ratio(taken[how], alone)))
            for how, label in _LABELS.items()
        ]
    return table


def _resume(plan: Plan, pool: Pool) -> Table:
    columns = ("files", "done", "us state_dict", "bytes", "ms alone", "ms wrapped", "ms resumed", "resumed / alone")
    note = (
        "From creating the pipeline to its first batch, over a file_list; nothing is decoded. Alone and wrapped: at "
        "the start of the epoch; resumed: after that part of it. The bytes are DALI's own checkpoint."
    )
    table = Table("DALI's iterators: state and resume", columns, note=note)
    remote = pool["dali resuming"]
    lengths = (1_000, 10_000) if plan.length < 1_000_000 else (1_000, 10_000, 100_000, 1_000_000)
    for files in lengths:
        for behind in _OFFSETS:
            try:
                remote.make("benchmarks.tasks_dali:Resuming", files=files, behind=behind)
            except MissingLibraryError as missing:
                table.rows.append((f"not installed: {missing}", *[""] * 7))
                return table
            measures = {
                "alone": partial(remote.call, "wait_alone"),
                "wrapped": partial(remote.call, "wait", resume=False),
                "resumed": partial(remote.call, "wait", resume=True),
            }
            taken: dict[str, list[float]] = in_turns(min(plan.rounds, 5), measures)
            microseconds = remote.call("save", calls=min(plan.calls, 200))
            waits = [f"{median(taken[name]):.0f}" for name in measures]
            cells = (f"{files:.0e}", f"{behind:.0%}", f"{microseconds:.0f}", str(remote.call("size")), *waits)
            table.rows.append((*cells, str(ratio(taken["resumed"], taken["alone"]))))
    return table
