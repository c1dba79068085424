"""Comparison with other libraries: throughput, resuming, and the size of the state."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.case import Case
from benchmarks.contenders import ENTRIES, PEERS
from benchmarks.ratios import median, ratio
from benchmarks.remote import MeasurementError, MissingLibraryError, NoAnswerError
from benchmarks.report import Table
from benchmarks.suites.throughput import per_second
from benchmarks.suites.turns import get_ready, read_in_turns, wait_in_turns

if TYPE_CHECKING:
    from benchmarks.plan import Plan
    from benchmarks.remote import Pool, Remote

__all__ = ["run", "run_resume"]

_OURS = ("off", "sample")
_READ_COLUMNS = ("loader", "workers", "us per item", "items/s", "resumable is faster by", "at least as fast")
_READ_NOTE = "Items per second of resumable (off) / the other's, median of paired turns (smallest-largest)."
_WAIT_COLUMNS = ("loader", "workers", "ms cold", "ms resumed", "bytes", "resumable is faster by", "at least as fast")
_WAIT_NOTE = (
    "From creating the loader to its first batch at 90 % of the epoch, including load_state_dict, after all imports. "
    "The factor is for resumable (off). The DataLoader has no state, so its cold start is shown instead."
)
_SIZE_COLUMNS = ("loader", "batch", "batches/s", "resumable is faster by", "at least as fast")
_SIZE_NOTE = (
    "Two workers, batches of 64 tensors, no cost per item; batches per second, and the factor of resumable (off) / the "
    "other, median of paired turns (smallest-largest). Libraries with their own file formats read 256 MB repeatedly, "
    "from the page cache."
)
_LIMIT = 60  # seconds; the longest call takes about 2
_NAMES = (*_OURS, *PEERS)
_SIZES = (8, 1024, 16 * 1024, 160 * 1024, 640 * 1024)  # bytes of a sample: batches of 0.5 kB to 40 MB
_LARGE = 160 * 1024  # from this size on, turns have fewer batches


def run(plan: Plan, pool: Pool) -> list[Table]:
    """Compare how fast all loaders read whose libraries are installed, and list the others."""
    reading = Table("Peers: throughput", _READ_COLUMNS, note=_READ_NOTE)
    sizes = Table("Peers: batches by their size", _SIZE_COLUMNS, note=_SIZE_NOTE)
    remotes, missing = _contenders(pool)
    for workers in (0, 2) if plan.every else (2,):
        for cost in plan.costs:
            reading.rows += _read(plan, Case(plan.length, workers, cost), remotes)
    for size in _SIZES if plan.every else _SIZES[:1]:
        sizes.rows += _sizes(plan, Case(plan.length, 2, size=size), remotes)
    return _complete([reading, sizes], remotes, missing)


def run_resume(plan: Plan, pool: Pool) -> list[Table]:
    """Compare how soon they deliver their first batch after a resume, and the sizes of their states."""
    waiting = Table("Peers: time to the first batch after a resume", _WAIT_COLUMNS, note=_WAIT_NOTE)
    remotes, missing = _contenders(pool)
    for workers in (0, 2) if plan.every else (0,):  # some peers spawn workers on each of several starts
        waiting.rows += _wait(plan, Case(plan.length, workers), remotes)
    return _complete([waiting], remotes, missing)


def _contenders(pool: Pool) -> tuple[dict[str, Remote], list[str]]:
    remotes = {name: pool[name] for name in _NAMES}
    missing = _drop_missing(remotes)
    for remote in remotes.values():
        remote.limit = _LIMIT
    return remotes, missing


def _complete(tables: list[Table], remotes: dict[str, Remote], missing: list[str]) -> list[Table]:
    hung = [f"{ENTRIES[name].label} {remote.unanswered}" for name, remote in remotes.items() if remote.unanswered]
    for table in tables:
        table.rows += [_missing_row(name, table) for name in missing]
        if hung:
            table.note += f" Calls that took more than {_LIMIT} s were repeated: {', '.join(hung)}."
    return tables


def _drop_missing(remotes: dict[str, Remote]) -> list[str]:
    """Keep the contenders whose libraries are installed; print and return the others."""
    missing = []
    for name in list(remotes):
        try:
            remotes[name].make("benchmarks.contenders:Check", name=name)
        except MissingLibraryError as error:
            print(f"{ENTRIES[name].label} left out, {error} is missing: {ENTRIES[name].install}", file=sys.stderr)
            missing.append(name)
            del remotes[name]
    return missing


def _missing_row(name: str, table: Table) -> tuple[str, ...]:
    return (ENTRIES[name].label, f"not installed: {ENTRIES[name].install}", *("" for _ in table.columns[2:]))


def _read(plan: Plan, case: Case, remotes: dict[str, Remote]) -> list[tuple[str, ...]]:
    taken = read_in_turns(plan, case, remotes)
    rows: list[tuple[str, ...]] = []
    for name, turns in taken.items():
        factor = ratio(turns["wall"], taken["off"]["wall"])
        compared = ("", "") if name in _OURS else (str(factor), factor.at_least(1.0))
        rows.append((ENTRIES[name].label, str(case.workers), str(case.cost), per_second(case, turns), *compared))
    return rows


def _sizes(plan: Plan, case: Case, remotes: dict[str, Remote]) -> list[tuple[str, ...]]:
    few = replace(plan, rounds=max(plan.rounds // 3, 1), batches=min(plan.batches, 200))
    if case.size >= _LARGE:
        few = replace(few, batches=20, lead=6)
    taken = read_in_turns(few, case, remotes)
    rows: list[tuple[str, ...]] = []
    for name, turns in taken.items():
        factor = ratio(turns["wall"], taken["off"]["wall"])
        compared = ("", "") if name in _OURS else (str(factor), factor.at_least(1.0))
        rows.append((ENTRIES[name].label, _in_bytes(case), f"{1e6 / median(turns['wall']):,.0f}", *compared))
    return rows


def _in_bytes(case: Case) -> str:
    size = case.size * case.batch
    return f"{size / 1024:g} kB" if size < 2**20 else f"{size / 2**20:g} MB"


def _wait(plan: Plan, case: Case, remotes: dict[str, Remote]) -> list[tuple[str, ...]]:
    remotes, broken = _those_that_resume(case, remotes)
    rounds = max(plan.rounds // 3, 1)
    cold, resumed = (wait_in_turns(rounds, remotes, resume=resume) for resume in (False, True))
    rows: list[tuple[str, ...]] = []
    for name, remote in remotes.items():
        factor = ratio(resumed[name], resumed["off"])
        compared = ("", "") if name in _OURS else (str(factor), factor.at_least(1.0))
        size = remote.call("size")
        times = (f"{median(cold[name]):.1f}", f"{median(resumed[name]):.1f}" if size else "none")
        rows.append((ENTRIES[name].label, str(case.workers), *times, str(size or "none"), *compared))
    for name, what in broken.items():
        rows.append((ENTRIES[name].label, str(case.workers), "none", what, "none", "none", "none"))
    return rows


def _those_that_resume(case: Case, remotes: dict[str, Remote]) -> tuple[dict[str, Remote], dict[str, str]]:
    """Prepare all that resume from their own state, and name what the other peers do."""
    ready, broken = {}, {}
    for name, remote in remotes.items():
        try:
            get_ready(case, {name: remote}, case.batches * 9 // 10)
            ready[name] = remote
        except MeasurementError as error:
            if name in _OURS:
                raise
            print(f"{ENTRIES[name].label} does not resume: {str(error).splitlines()[-1]}", file=sys.stderr)
            broken[name] = "does not answer" if isinstance(error, NoAnswerError) else "raises an error"
    return ready, broken
