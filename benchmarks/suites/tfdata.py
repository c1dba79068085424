"""tf.data: wrapped and alone, the cost of a state, and the time to resume."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.ratios import in_turns, median, ratio
from benchmarks.remote import MissingLibraryError
from benchmarks.report import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.plan import Plan
    from benchmarks.remote import Pool

__all__ = ["run"]

_MODULE = "benchmarks.tasks_tfdata"
_BOTH = ("explicit", "symbolic")  # "auto" chooses the first
_CASES = {
    "numbers": _BOTH,
    "shuffle, then decode": _BOTH,
    "decode, then shuffle": _BOTH,
    "parallel interleave": ("explicit",),
}
_TARGET = 0.95
_MILLISECONDS = ("save", "cold", "resume", "replay")


def run(plan: Plan, pool: Pool) -> list[Table]:
    """Measure pipelines with every strategy; if TensorFlow is not installed, the tables say so."""
    tables = [_throughput(plan, pool), _states(plan, pool)]
    pool.rest()
    return tables


def _throughput(plan: Plan, pool: Pool) -> Table:
    columns = ("pipeline", "strategy", "batches/s alone", "batches/s wrapped", "wrapped / alone", "target", "reached")
    note = (
        "Batches of 64, through as_numpy_iterator, each turn a new pass; no state is saved meanwhile. The cost of a "
        "symbolic state is TensorFlow's: the same option without this package takes as long."
    )
    table = Table("tf.data: throughput of wrap(dataset) against the dataset", columns, note=note)
    for name, (first, *others) in _CASES.items():
        strategies = (None, first, *others)
        try:
            for strategy in strategies:
                pool[f"tf.data {strategy}"].make(
                    f"{_MODULE}:Reading", name=name, length=_length(plan), buffer=256, strategy=strategy
                )
        except MissingLibraryError as missing:
            return _without(table, missing)
        taken: dict[str | None, list[float]] = in_turns(
            plan.rounds,
            {
                strategy: partial(
                    pool[f"tf.data {strategy}"].call, "turn", batches=plan.batches, seconds=plan.seconds * 2
                )
                for strategy in strategies
            },
        )
        for strategy in (first, *others):
            both = ratio(taken[strategy], taken[None])
            speeds = (f"{median(taken[None]):.0f}", f"{median(taken[strategy]):.0f}")
            told = f"{strategy} (auto)" if strategy == first else strategy
            table.rows.append((name, told, *speeds, str(both), f">= {_TARGET}", both.at_least(_TARGET)))
    return table


def _states(plan: Plan, pool: Pool) -> Table:
    columns = ("pipeline", "strategy", "buffer", "MB", "ms state_dict", "ms cold", "ms resume", "ms skip")
    note = (
        "In the middle of a pass over 20000 elements, of 49 kB if they are decoded. From creating the loader to the "
        "first batch: cold, of a new run; resume, from the state; skip, with the dataset's own skip()."
    )
    table = Table("tf.data: states", columns, note=note)
    remote = pool["tf.data states"]
    for name, strategy, buffer in ((*case, buffer) for case in _cases() for buffer in (256, 2048)):
        try:
            remote.make(f"{_MODULE}:States", name=name, length=_length(plan), buffer=buffer, strategy=strategy)
        except MissingLibraryError as missing:
            return _without(table, missing)
        calls = {what: partial(remote.call, what) for what in _MILLISECONDS}
        taken: dict[str, list[float]] = in_turns(max(plan.rounds // 3, 2), calls)
        times = [f"{median(taken[what]):.0f}" for what in _MILLISECONDS]
        table.rows.append((name, strategy, str(buffer), f"{remote.call('size') / 1e6:.2f}", *times))
    return table


def _cases() -> Iterator[tuple[str, str]]:
    return ((name, strategy) for name, strategies in _CASES.items() for strategy in strategies)


def _without(table: Table, missing: MissingLibraryError) -> Table:
    table.rows.append((f"not installed: {missing}", *[""] * (len(table.columns) - 1)))
    return table


def _length(plan: Plan) -> int:
    """Return the number of elements in a pass: 20000, and fewer in a quick run."""
    return plan.length // 50
