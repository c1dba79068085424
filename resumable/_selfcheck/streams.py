"""Runs of a loader: part of its stream, batch by batch and by content, with the states to resume from later."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import logging
import math
import pickle
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable import rng
from resumable._content import Array, Uncompared, digest_arrays, leaves_of, text_of
from resumable.errors import OnePassError
from resumable.testing import digest, draw_from_generators

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resumable.loader.loader import Loader

__all__ = [
    "Batch",
    "BatchDifference",
    "Clock",
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

_FIRST = frozenset({0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144})  # numbers of batches after which states are kept
_LEAST = 3  # batches that are read even if the time is over


def recorded(loader: Loader, count: int, clock: Clock, share: float) -> Recorded:
    """Read the uninterrupted run, and save a state after each batch; keep those at epoch borders and some more.

    Args:
        loader: at the first batch.
        count: maximum number of batches.
        clock: of the whole check.
        share: fraction of its time available for this run.
    """
    end = time.monotonic() + clock.seconds * share
    batches: list[Batch] = []
    states = _States()
    states.take(loader, 0)
    moved, before = None, rng.digests()
    for batch in _stream(loader, count):
        batches.append(batch)
        states.take(loader, len(batches))
        if len(batches) > 1 and batches[-2].epoch != batch.epoch:
            states.keep(len(batches) - 1)
        states.thin_out(len(batches))
        if (after := rng.digests()) != before:
            moved, before = moved or batch, after
        if (len(batches) >= _LEAST and time.monotonic() > end) or _is_enough(batches):
            break
    return Recorded(batches, states.values, states.changed(), moved)


class Recorded(NamedTuple):
    """The uninterrupted run.

    Args:
        batches: in order.
        states: from the number of batches before a state to that state.
        changed: the first of them that changed by the end of the run.
        moved: the first batch during which the global RNGs changed; None if there is none.
    """

    batches: list[Batch]
    states: dict[int, Any]
    changed: int | None
    moved: Batch | None


def read(loader: Loader, count: int, clock: Clock, *, draw: bool = False) -> list[Batch]:
    """Read `count` batches, or fewer if the source ends or the time is over.

    Args:
        loader: at the first of them.
        count: how many.
        clock: the time limit.
        draw: whether to use the global RNGs after each batch, as a trainer does.
    """
    batches = []
    for batch in _stream(loader, count):
        batches.append(batch)
        if draw:
            draw_from_generators()
        if len(batches) >= _LEAST and clock.is_over():
            break
    return batches


def _stream(loader: Loader, count: int) -> Iterator[Batch]:
    """Yield the next batches, by content; a source that can be read only once ends after one pass."""
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


def _is_enough(batches: list[Batch]) -> bool:
    """Return whether two epochs and two batches of the third were read."""
    first = batches[0].epoch
    return len(batches) > 1 and batches[-2].epoch == batches[-1].epoch and batches[-1].epoch - first > 1


class _States:
    """The states of a run that are used later, and digests that show whether they change."""

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
    """Return the numbers of batches after which an epoch ends and the next one follows."""
    pairs = enumerate(pairwise(batches), start=1)
    return [number for number, (one, other) in pairs if one.epoch != other.epoch]


def carried(state: Any) -> Any:
    """Return a state as restored from a checkpoint: through JSON if that is lossless, else PyTorch, else pickle."""
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


def _digest(state: Any) -> str:
    parts = take_apart(state, 0, 0).parts
    return digest(parts)


class Batch(NamedTuple):
    """A batch, by content.

    Args:
        epoch: its epoch.
        step: its number in the epoch.
        parts: path and content of each part, as a short text that identifies the content.
        samples: digest of each sample, in order, as far as samples can be distinguished.
    """

    epoch: int
    step: int
    parts: tuple[tuple[str, str], ...]
    samples: tuple[str, ...]

    @property
    def place(self) -> str:
        """The position in words."""
        return f"epoch {self.epoch}, step {self.step}"


_log = logging.getLogger("resumable")
_MOST = 512  # parts that are listed; the rest share one digest
_ROWS = 1024  # samples that are distinguished


def take_apart(batch: Any, epoch: int, step: int) -> Batch:
    """Return the content by which a batch is compared."""
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
    """Warn about parts that are not compared, once per reason."""
    told: set[str] = set()
    for path, leaf in leaves:
        if isinstance(leaf, Uncompared) and leaf not in told:
            told.add(leaf)
            where = f"the part {path} of a batch" if path else "a batch"
            _log.warning("%s is not compared: %s", where, leaf.why)
        yield path, leaf


def first_difference(expected: Sequence[Batch], found: Sequence[Batch]) -> BatchDifference | None:
    """Return the first difference between two runs; None if each batch of the shorter one is the same."""
    for ours, theirs in zip(expected, found, strict=False):
        if ours != theirs:
            return _difference(ours, theirs)
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class BatchDifference:
    """The first batch in which two runs differ.

    Args:
        epoch: of the batch.
        step: its number in the epoch.
        part: dotted path of the first part that differs; empty for the whole batch.
        expected: the part in the uninterrupted run: values, or type, shape and digest.
        found: the part in the other run.
    """

    epoch: int
    step: int
    part: str
    expected: str
    found: str


def _difference(ours: Batch, theirs: Batch) -> BatchDifference:
    if ours[:2] != theirs[:2]:
        return BatchDifference(ours.epoch, ours.step, "", f"a batch of {ours.place}", f"a batch of {theirs.place}")
    for one, other in zip(ours.parts, theirs.parts, strict=False):
        if one != other:
            path = one[0] if one[0] == other[0] else ""
            first, second = (one[1], other[1]) if one[0] == other[0] else (f"a part {one[0]}", f"a part {other[0]}")
            return BatchDifference(ours.epoch, ours.step, path, first, second)
    lengths = (f"{len(batch.parts)} parts" for batch in (ours, theirs))
    return BatchDifference(ours.epoch, ours.step, "", *lengths)


def order_differs(expected: Sequence[Batch], found: Sequence[Batch]) -> bool:
    """Return whether two runs have the same samples in a different order."""
    counts = [Counter(sample for batch in run for sample in batch.samples) for run in (expected, found)]
    return bool(counts[0]) and counts[0] == counts[1]


@dataclass(slots=True)
class Clock:
    """The time limit of a check.

    Args:
        seconds: the limit.
    """

    seconds: float
    began: float = field(default_factory=time.monotonic)
    was_short: bool = False

    @property
    def left(self) -> float:
        """Remaining seconds."""
        return self.began + self.seconds - time.monotonic()

    def is_over(self) -> bool:
        """Return whether the time is over, and record it if so."""
        self.was_short = self.was_short or self.left <= 0
        return self.left <= 0


class Generators:
    """Restores the global RNGs to their initial state before each fresh loader.

    Args:
        state: of `resumable.rng`; None for the current one.
    """

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        self.state = rng.state_dict() if state is None else state

    def put_back(self) -> None:
        """Restore them; if torch was imported later, seed it as in a new process."""
        rng.restore(self.state)
        torch = sys.modules.get("torch")
        if torch is not None and "torch" not in self.state:
            torch.manual_seed(torch.Generator().initial_seed())
