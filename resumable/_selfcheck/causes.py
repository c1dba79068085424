"""What the likely cause of a difference is, in a sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from resumable._selfcheck.batches import first_difference, order_differs

if TYPE_CHECKING:
    from resumable._selfcheck.batches import Batch
    from resumable._selfcheck.report import Trial

__all__ = ["ALIAS", "MOVED", "add", "of_cut", "of_processes", "of_runs"]

MOVED = (
    "After the batch of {} they stand elsewhere, so dropout and the like draw other numbers than without the loader. "
    "Does the source seed them, or draw from them outside of its samples?"
)
ALIAS = (
    "The state after {} batches is another one now that its run went on: the source's state_dict() gives its own lists "
    "or dicts. Let it return copies."
)
_ORDER = "The same samples come in another order: "
_VALUES = "Its values differ between two uninterrupted runs: "
_UNSEEDED = (
    "it draws without a key, as from os.urandom or from numpy's default_rng() in __getitem__, or it counts or "
    "remembers outside of the function that makes the loader. Draw from random, numpy.random or torch, which are "
    "seeded per sample."
)
_UNSEEDED_ORDER = "it is drawn without a seed, or the function that makes the loader gives the data in another order."
_TRAINERS = (
    "It changes with what the trainer draws from the global generators, so a resumed run gets other values: the source "
    'draws from them outside of its samples, or randomness="off" was given.'
)
_STATE_TAKEN = "Taking states changes the stream: the source's state_dict() moves it, or draws."
_HASH = (
    "It depends on PYTHONHASHSEED, which is another number in each process: on the order of a set, or on hash() of "
    "texts. Sort what comes out of a set; use hashlib for texts."
)
_PROCESS = (
    "It is the same in this process, and another one in each new process: a generator is seeded by the system, as "
    "random and numpy.random are, or it depends on the time or the process. Seed it in the script."
)
_MOVED_STATE = "The resumed run {}: the source's state_dict() leaves out {}."
_BUFFER = (
    "The source's state_dict() leaves out something that the next elements depend on, such as a buffer, a generator "
    'or a counter. Let it say all, or give wrap(..., resume="replay").'
)
_REMEMBERS = (
    "It depends on what was read before in the process: a counter of the dataset's own, or an iterator that goes on "
    "from sample to sample. Let a sample depend on its index, and draw from random, numpy.random or torch, which are "
    "seeded per sample."
)


def add(trial: Trial, cause: str) -> Trial:
    """Return a trial with its likely cause."""
    return replace(trial, cause=cause)


def of_runs(first: list[Batch], second: list[Batch], third: list[Batch]) -> str:
    """Return why two uninterrupted runs differ.

    Args:
        first: states were taken.
        second: the trainer drew from the global generators.
        third: neither.
    """
    if not _differ(first, third):
        return _TRAINERS
    if not _differ(second, third):
        return _STATE_TAKEN
    return _ORDER + _UNSEEDED_ORDER if order_differs(first, second) else _VALUES + _UNSEEDED


def of_cut(run: list[Batch], after: int, found: list[Batch], *, has_snapshot: bool) -> str:
    """Return why a resumed run differs.

    Args:
        run: the uninterrupted one.
        after: how many batches of it the run was cut.
        found: the resumed one.
        has_snapshot: the source was brought back by its own state.
    """
    content = [batch.parts for batch in run]
    elsewhere = content.index(found[0].parts) if found[0].parts in content else after
    if has_snapshot and elsewhere != after and content.count(found[0].parts) == 1:
        count = abs(elsewhere - after)
        plural = "es" * (count > 1)
        gone = f"leaves {count} batch{plural} out" if elsewhere > after else f"repeats {count} batch{plural}"
        return _MOVED_STATE.format(gone, "its place" if elsewhere < after else "a buffer, or what it read ahead")
    return _BUFFER if has_snapshot else _REMEMBERS


def of_processes(other: list[Batch], another: list[Batch] | None, run: list[Batch]) -> str:
    """Return why the stream of another process differs.

    Args:
        other: with another PYTHONHASHSEED.
        another: of one more process with the same one; None where that failed.
        run: of this process.
    """
    order = _ORDER if order_differs(run, other) else ""
    if another is None or _differ(other, another):
        return order + _PROCESS
    return order + _HASH


def _differ(one: list[Batch], other: list[Batch]) -> bool:
    return first_difference(one, other) is not None
