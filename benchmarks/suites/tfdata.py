"""tf.data: wrapped against alone, the cost of a state, and the time to resume."""

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

_NAMES = ("numbers", "shuffle, then decode", "decode, then shuffle", "parallel interleave")
_TARGET = 0.95
_MILLISECONDS = ("save", "cold", "resume", "replay")


def run(plan: Plan, pool: Pool) -> list[Table]:
    """Measure pipelines of every strategy; where TensorFlow is not installed, say so."""
    tables = [_throughput(plan, pool), _states(plan, pool)]
    pool.rest()
    return tables


def _throughput(plan: Plan, pool: Pool) -> Table:
    columns = ("pipeline", "batches/s alone", "batches/s wrapped", "wrapped / alone", "target", "reached")
    note = "Batches of 64, through as_numpy_iterator; no state is taken meanwhile."
    table = Table("tf.data: throughput of wrap(dataset) against the dataset", columns, note=note)
    remotes = {wrapped: pool[f"tf.data {wrapped}"] for wrapped in (False, True)}
    for name in _NAMES:
        try:
            for wrapped, remote in remotes.items():
                remote.make(
                    "benchmarks.tasks_tfdata:Reading", name=name, length=_length(plan), buffer=256, wrapped=wrapped
                )
        except MissingLibraryError as missing:
            table.rows.append((f"not installed: {missing}", *[""] * 5))
            return table
        turns = {
            wrapped: partial(remote.call, "turn", batches=plan.batches, seconds=plan.seconds)
            for wrapped, remote in remotes.items()
        }
        taken: dict[bool, list[float]] = in_turns(plan.rounds, turns)
        alone, ours = taken[False], taken[True]
        both = ratio(ours, alone)
        speeds = (f"{median(alone):.0f}", f"{median(ours):.0f}")
        table.rows.append((name, *speeds, str(both), f">= {_TARGET}", both.at_least(_TARGET)))
    return table


def _states(plan: Plan, pool: Pool) -> Table:
    columns = ("pipeline", "buffer", "strategy", "MB", "ms state_dict", "ms cold", "ms resume", "ms skip")
    note = (
        "In the middle of a pass over 20000 elements, of 49 kB where they are decoded. From making the loader to the "
        "first batch: cold, of a new run; resume, from the state; skip, by the dataset's own skip()."
    )
    table = Table("tf.data: states", columns, note=note)
    remote = pool["tf.data states"]
    for name in _NAMES:
        for buffer in (256, 2048):
            try:
                remote.make("benchmarks.tasks_tfdata:States", name=name, length=_length(plan), buffer=buffer)
            except MissingLibraryError as missing:
                table.rows.append((f"not installed: {missing}", *[""] * 7))
                return table
            calls = {what: partial(remote.call, what) for what in _MILLISECONDS}
            taken: dict[str, list[float]] = in_turns(plan.rounds, calls)
            times = [f"{median(taken[what]):.0f}" for what in _MILLISECONDS]
            size = remote.call("size") / 1e6
            table.rows.append((name, str(buffer), remote.call("strategy"), f"{size:.2f}", *times))
    return table


def _length(plan: Plan) -> int:
    """Return the elements of a pass: 20000, and fewer in a quick run."""
    return plan.length // 50
