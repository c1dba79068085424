"""Runs of a loader: a part of its stream, batch by batch and by content, with the states that are cut at later."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import logging
import math
import pickle
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable import rng
from resumable._content import Array, Uncompared, digest_arrays, leaves_of, text_of
from resumable.errors import OnePassError
from resumable.testing import digest, draw_from_generators

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resumable.loader.loader import Loader

__all__ = [
    "Batch",
    "Clock",
    "Difference",
    "Generators",
    "Recorded",
    "borders_of",
    "carried",
    "first_difference",
    "order_differs",
    "read",
    "recorded",
    "take_apart",
]

_FIRST = frozenset({0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144})  # after so many batches, a state is kept
_LEAST = 3  # batches that are read however long they take


@dataclass(slots=True)
class Clock:
    """The time that a check has.

    Args:
        seconds: of it.
    """

    seconds: float
    began: float = field(default_factory=time.monotonic)
    was_short: bool = False

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.began + self.seconds - time.monotonic()

    def is_over(self) -> bool:
        """Return whether the time is over, and note that it is."""
        self.was_short = self.was_short or self.left <= 0
        return self.left <= 0


class Recorded(NamedTuple):
    """The uninterrupted run.

    Args:
        batches: in their order.
        states: after so many batches; as they were then.
        changed: of those, the first that was another one at the end of the run than when it was taken.
        moved: the first batch in whose reading the global generators were moved; None where there is none.
    """

    batches: list[Batch]
    states: dict[int, Any]
    changed: int | None
    moved: Batch | None


def read(loader: Loader, count: int, clock: Clock, *, draw: bool = False) -> list[Batch]:
    """Read so many batches, fewer where the source ends or the time is over.

    Args:
        loader: stands where the first of them is.
        count: how many.
        clock: ends it.
        draw: draw from the global generators after each, as a trainer does.
    """
    batches = []
    for batch in _stream(loader, count):
        batches.append(batch)
        if draw:
            draw_from_generators()
        if len(batches) >= _LEAST and clock.is_over():
            break
    return batches


def recorded(loader: Loader, count: int, clock: Clock, share: float) -> Recorded:
    """Read the uninterrupted run, and take a state after each batch; those at epoch borders are kept, and some more.

    Args:
        loader: stands where the first batch is.
        count: of batches, at most.
        clock: of the whole check.
        share: of its time that may be used for this.
    """
    end = time.monotonic() + clock.seconds * share
    batches: list[Batch] = []
    states = _States()
    states.take(loader, 0)
    moved, before = None, _generators()
    for batch in _stream(loader, count):
        batches.append(batch)
        states.take(loader, len(batches))
        if len(batches) > 1 and batches[-2].epoch != batch.epoch:
            states.keep(len(batches) - 1)
        states.thin_out(len(batches))
        if (after := _generators()) != before:
            moved, before = moved or batch, after
        if (len(batches) >= _LEAST and time.monotonic() > end) or _is_enough(batches):
            break
    return Recorded(batches, states.values, states.changed(), moved)


def _is_enough(batches: list[Batch]) -> bool:
    """Return whether two epochs are over, and two batches of the third are read."""
    first = batches[0].epoch
    return len(batches) > 1 and batches[-2].epoch == batches[-1].epoch and batches[-1].epoch - first > 1


class _States:
    """The states of a run: of all that are taken those that are of use, and digests that show whether they change."""

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self._digests: dict[int, str] = {}
        self._kept: set[int] = set()

    def take(self, loader: Loader, done: int) -> None:
        if not loader.evaluation:
            self.values[done] = loader.state_dict()
            self._digests[done] = _digest(self.values[done])

    def keep(self, border: int) -> None:
        self._kept |= {border - 1, border, border + 1}

    def thin_out(self, done: int) -> None:
        old = done - 3
        if old in self.values and old not in _FIRST and old not in self._kept:
            del self.values[old]

    def changed(self) -> int | None:
        return next((done for done, state in self.values.items() if _digest(state) != self._digests[done]), None)


def borders_of(batches: list[Batch]) -> list[int]:
    """Return after how many batches an epoch was over that is followed by another one here."""
    pairs = enumerate(pairwise(batches), start=1)
    return [number for number, (one, other) in pairs if one.epoch != other.epoch]


def carried(state: Any) -> Any:
    """Return a state as it comes back from a checkpoint: by JSON if that has it all, else by torch, else by pickle."""
    try:
        text = json.dumps(state)
        if json.loads(text) == state:
            return json.loads(text)
    except (TypeError, ValueError):
        pass
    torch = sys.modules.get("torch")
    if torch is not None:
        try:
            buffer = io.BytesIO()
            torch.save(state, buffer)
            buffer.seek(0)
            return torch.load(buffer, weights_only=True)
        except Exception:  # noqa: BLE001  # the state has objects of a user's class
            return pickle.loads(pickle.dumps(state))  # noqa: S301  # our own bytes
    return pickle.loads(pickle.dumps(state))  # noqa: S301  # the same


def _stream(loader: Loader, count: int) -> Iterator[Batch]:
    """Yield the next batches, by content; a source that can be read once ends with its one pass."""
    batches = iter(loader) if loader.evaluation else loader.steps(math.inf)
    for number in range(count):
        try:
            batch = next(batches)
        except (StopIteration, OnePassError):
            if not number:
                raise
            return
        if loader.ack_mode == "manual":
            loader.ack()
        at = loader.cursor
        yield take_apart(batch, at.epoch, at.step - 1)


def _digest(state: Any) -> str:
    parts = take_apart(state, 0, 0).parts
    return digest(parts)


def _generators() -> Any:
    """Return what tells whether the global generators were moved."""
    numpy: Any = np.random.get_state(legacy=True)  # noqa: NPY002  # the global one is meant
    torch = sys.modules.get("torch")
    torchs = None if torch is None else torch.get_rng_state().numpy().tobytes()
    return hash(random.getstate()), numpy[1].tobytes(), numpy[2:], torchs


class Generators:
    """Puts the global generators back before each fresh loader, to where they were at the beginning.

    Args:
        state: of `resumable.rng`; None for the present one.
    """

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        self.state = rng.state_dict() if state is None else state

    def put_back(self) -> None:
        """Do it; a torch that came later gets the state that it has in a new process."""
        rng.restore(self.state)
        torch = sys.modules.get("torch")
        if torch is not None and "torch" not in self.state:
            torch.manual_seed(torch.Generator().initial_seed())


_log = logging.getLogger("resumable")
_MOST = 512  # parts that are kept by themselves; the others count together
_ROWS = 1024  # samples that are told apart


class Batch(NamedTuple):
    """A batch, by content.

    Args:
        epoch: in which it is.
        step: its number there.
        parts: path and content of each part, in a short text that differs where the content does.
        samples: digest of each sample, as far as they can be told apart; in their order.
    """

    epoch: int
    step: int
    parts: tuple[tuple[str, str], ...]
    samples: tuple[str, ...]

    @property
    def place(self) -> str:
        """The place in words."""
        return f"epoch {self.epoch}, step {self.step}"


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """The first batch in which two runs differ.

    Args:
        epoch: of the batch.
        step: its number in the epoch.
        part: dotted path of the first part that differs; empty for the batch itself.
        expected: what the uninterrupted run has there: values, or type, shape and digest.
        found: what the other run has there.
    """

    epoch: int
    step: int
    part: str
    expected: str
    found: str


def take_apart(batch: Any, epoch: int, step: int) -> Batch:
    """Return what a batch is compared by."""
    parts: list[tuple[str, str]] = []
    more = hashlib.blake2b(digest_size=8)
    arrays: list[Array] = []
    for path, leaf in _told(leaves_of(batch)):
        if isinstance(leaf, Array) and leaf.rows is not None and leaf.rows == (arrays or [leaf])[0].rows:
            arrays.append(leaf)
        text = text_of(leaf)
        if len(parts) < _MOST:
            parts.append((path, text))
        else:
            more.update(f"{path} {text}\n".encode())
            parts[_MOST - 1 :] = [*parts[_MOST - 1 : _MOST], ("...", f"more parts with the digest {more.hexdigest()}")]
    length = min(arrays[0].rows or 0, _ROWS) if arrays else 0
    rows = [digest_arrays(array.row(number) for array in arrays) for number in range(length)]
    samples = tuple(rows or ([text for _, text in parts] if isinstance(batch, (list, tuple)) else []))
    return Batch(epoch, step, tuple(parts), samples)


def _told(leaves: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Say which parts are not compared, once for each reason."""
    told: set[str] = set()
    for path, leaf in leaves:
        if isinstance(leaf, Uncompared) and leaf not in told:
            told.add(leaf)
            where = f"the part {path} of a batch" if path else "a batch"
            _log.warning("%s is not compared: %s", where, leaf.why)
        yield path, leaf


def first_difference(expected: Sequence[Batch], found: Sequence[Batch]) -> Difference | None:
    """Return the first difference between two runs; None where each batch of the shorter one is the same."""
    for ours, theirs in zip(expected, found, strict=False):
        if ours != theirs:
            return _difference(ours, theirs)
    return None


def order_differs(expected: Sequence[Batch], found: Sequence[Batch]) -> bool:
    """Return whether two runs have the same samples, in another order."""
    counts = [Counter(sample for batch in run for sample in batch.samples) for run in (expected, found)]
    return bool(counts[0]) and counts[0] == counts[1]


def _difference(ours: Batch, theirs: Batch) -> Difference:
    if ours[:2] != theirs[:2]:
        return Difference(ours.epoch, ours.step, "", f"a batch of {ours.place}", f"a batch of {theirs.place}")
    for one, other in zip(ours.parts, theirs.parts, strict=False):
        if one != other:
            path = one[0] if one[0] == other[0] else ""
            first, second = (one[1], other[1]) if one[0] == other[0] else (f"a part {one[0]}", f"a part {other[0]}")
            return Difference(ours.epoch, ours.step, path, first, second)
    lengths = (f"{len(batch.parts)} parts" for batch in (ours, theirs))
    return Difference(ours.epoch, ours.step, "", *lengths)
