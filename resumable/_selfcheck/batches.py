"""What a batch is compared by: a digest of each of its parts, under its dotted path."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable._content import Array, Uncompared, digest_arrays, leaves_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Batch", "Difference", "first_difference", "order_differs", "take_apart"]

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
