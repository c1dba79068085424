"""Windows of documents as functions of (epoch, window): arithmetic over the sums of blocks of documents.

flat    the documents as they are stored, cut every `length` tokens, from a place that differs by epoch
concat  the documents of a block in an order that differs by epoch, one after the other, cut every `length` tokens
fit     the documents of a block best-fit into windows; one is cut only where it is longer than `length`
"""

from __future__ import annotations

from bisect import bisect_left, insort
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable._randomness.keyed import derive
from resumable.samplers.permutation import Permutation

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable._randomness.keyed import IntArray

__all__ = ["Concat", "Fit", "Flat", "Pieces", "best_fit"]

_KEPT = 128  # blocks of 100 kB
_KEPT_FITS = 512  # of 140 kB; each takes milliseconds to make


class Pieces(NamedTuple):
    """Pieces of documents that fill a window, one after the other; arrays of shape `(pieces,)`.

    Args:
        document: number of the document of each piece.
        first: which token of the document the piece begins with.
        length: tokens of the piece.
        at: number of its first token among all tokens.
        ends: the document ends with it.
    """

    document: IntArray
    first: IntArray
    length: IntArray
    at: IntArray
    ends: Any

    @classmethod
    def joined(cls, parts: list[Pieces]) -> Pieces:
        """Return the pieces of several lists as one."""
        return parts[0] if len(parts) == 1 else cls(*map(np.concatenate, zip(*parts, strict=True)))


class _Block(NamedTuple):
    """Documents one after the other.

    Args:
        documents: their numbers.
        starts: where each begins in that order, and where the last one ends; one more than there are documents.
        at: number of the first token of each among all tokens.
    """

    documents: IntArray
    starts: IntArray
    at: IntArray

    def span(self, start: int, stop: int) -> Pieces:
        """Return the pieces of the tokens `start..stop-1`."""
        low = int(np.searchsorted(self.starts, start, side="right")) - 1
        high = int(np.searchsorted(self.starts, stop, side="left"))
        begins, ends = self.starts[low:high], self.starts[low + 1 : high + 1]
        begin, end = np.maximum(begins, start), np.minimum(ends, stop)
        full = end > begin
        first = (begin - begins)[full]
        at = self.at[low:high][full] + first
        return Pieces(self.documents[low:high][full], first, (end - begin)[full], at, (end == ends)[full])


class _Packing:
    """What the three have in common.

    Args:
        lengths: returns those of the documents of a block.
        ends: tokens up to the end of each block, shape `(blocks,)`.
        block: documents per block.
        length: tokens per window.
        seed: selects the order.
    """

    def __init__(self, lengths: Callable[[int], IntArray], ends: IntArray, block: int, length: int, seed: int) -> None:
        self._lengths, self._ends, self._size, self._length, self._seed = lengths, ends, block, length, seed
        self._begin_caches()

    def _begin_caches(self) -> None:
        self._block = lru_cache(maxsize=_KEPT)(self._order)

    def _set_until(self, sizes: IntArray) -> None:
        """Keep how many windows there are up to the end of each block."""
        self._until = np.cumsum(sizes)
        self.windows = int(self._until[-1])

    @property
    def sizes(self) -> IntArray:
        """Windows of each block, shape `(blocks,)`; all as one where windows cross the borders of blocks."""
        return np.diff(self._until, prepend=0)

    def _find(self, window: int) -> tuple[int, int]:
        """Return the block of a window, and which of its windows that is."""
        number = int(np.searchsorted(self._until, window, side="right"))
        return number, window - (int(self._until[number - 1]) if number else 0)

    def _stored(self, number: int) -> _Block:
        lengths = self._lengths(number)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        first, at = number * self._size, int(self._ends[number] - starts[-1])
        return _Block(np.arange(first, first + len(lengths)), starts, at + starts[:-1])

    def _order(self, epoch: int, number: int) -> _Block:
        stored = self._stored(number)
        key = derive(self._seed, words=1, purpose=b"packed-documents")
        order = Permutation(len(stored.documents), int(key[0]), epoch, number).range(0, len(stored.documents))
        starts = np.concatenate([[0], np.cumsum(np.diff(stored.starts)[order])])
        return _Block(stored.documents[order], starts, stored.at[order])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_block"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin_caches()


class Flat(_Packing):
    """Documents as they are stored, cut every `length` tokens; fewer than two windows of tokens are left out.

    Args:
        targets: tokens that have to follow the last window.
        given: what all packings take.
    """

    def __init__(self, *given: Any, targets: int) -> None:
        super().__init__(*given)
        self._set_until(np.array([max(int(self._ends[-1]) - self._length + 1 - targets, 0) // self._length]))

    def phase(self, epoch: int) -> int:
        """Return where the first window of an epoch begins; 0 in epoch 0."""
        word = derive(self._seed, epoch, words=1, purpose=b"packed-phase")[0]
        return int(word) % self._length if epoch else 0

    def _order(self, epoch: int, number: int) -> _Block:  # noqa: ARG002  # storage order, whatever the epoch
        return self._stored(number)

    def pieces(self, epoch: int, window: int) -> Pieces:
        """Return the pieces of a window."""
        start = self.phase(epoch) + window * self._length
        stop, parts = start + self._length, []
        while start < stop:
            number = int(np.searchsorted(self._ends, start, side="right"))
            block = self._block(0, number)
            base = int(self._ends[number] - block.starts[-1])
            last = min(stop, int(self._ends[number]))
            parts.append(block.span(start - base, last - base))
            start = last
        return Pieces.joined(parts)


class Concat(_Packing):
    """Documents in another order within their block; the last tokens of a block that fill no window are left out."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._set_until(np.diff(self._ends, prepend=0) // self._length)

    def pieces(self, epoch: int, window: int) -> Pieces:
        """Return the pieces of a window."""
        number, own = self._find(window)
        start = own * self._length
        return self._block(epoch, number).span(start, start + self._length)


class Fit(_Packing):
    """Documents best-fit into windows of at most `length` tokens; each token is in one of them.

    Args:
        counts: windows of each block, where they are known.
        given: what all packings take.
    """

    def __init__(self, *given: Any, counts: IntArray | None = None) -> None:
        super().__init__(*given)
        if counts is None:
            counts = np.array([self._count(number) for number in range(len(self._ends))])
        self._set_until(counts)

    def _begin_caches(self) -> None:
        super()._begin_caches()
        self._packed = lru_cache(maxsize=_KEPT_FITS)(self._pack)

    def _count(self, number: int) -> int:
        """Return the windows of a block: the same in every epoch, as they depend on nothing but the lengths."""
        counts, _, _ = _cut(self._lengths(number), self._length)
        return int(best_fit(counts, self._length)[1][-1]) + 1 if len(counts) else 0

    def _pack(self, epoch: int, number: int) -> tuple[Pieces, IntArray]:
        block = self._order(epoch, number)
        lengths = np.diff(block.starts)
        count, which, first = _cut(lengths, self._length)
        order, bins = best_fit(count, self._length)
        which, first, count = which[order], first[order], count[order]
        at, ends = block.at[which] + first, first + count == lengths[which]
        borders = np.searchsorted(bins, np.arange(int(bins[-1]) + 2))
        return Pieces(block.documents[which], first, count, at, ends), borders

    def pieces(self, epoch: int, window: int) -> Pieces:
        """Return the pieces of a window; they may have fewer than `length` tokens."""
        number, own = self._find(window)
        pieces, borders = self._packed(epoch, number)
        return Pieces(*(values[borders[own] : borders[own + 1]] for values in pieces))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_packed"}


def _cut(lengths: IntArray, most: int) -> tuple[IntArray, IntArray, IntArray]:
    """Cut documents into pieces of at most `most` tokens: their counts, whose each is, and where in it it begins."""
    parts = -(-lengths // most)
    which = np.repeat(np.arange(len(lengths)), parts)
    within = np.arange(len(which)) - np.repeat(np.cumsum(parts) - parts, parts)
    first = within * most
    return np.minimum(lengths[which] - first, most), which, first


def best_fit(counts: IntArray, room: int) -> tuple[IntArray, IntArray]:
    """Put pieces into bins, the largest first, each into the fullest bin that has room for it (best-fit decreasing).

    The number of bins depends on the counts alone, and not on their order, as bins with the same room are alike.

    Args:
        counts: of the tokens of each piece, `1..room`.
        room: tokens that a bin takes.

    Returns:
        The pieces by their bins, and the bin of each of those; shape `(pieces,)`.
    """
    order = np.argsort(-counts, kind="stable")
    rooms: list[int] = []  # those that some bins have left, in ascending order
    having: dict[int, list[int]] = {}
    bins, last = [], 0
    for count in counts[order].tolist():
        place = bisect_left(rooms, count)
        if place == len(rooms):
            left, number, last = room, last, last + 1
        else:
            left = rooms[place]
            number = having[left].pop()
            if not having[left]:
                del rooms[place], having[left]
        bins.append(number)
        if left := left - count:
            if left not in having:
                insort(rooms, left)
            having.setdefault(left, []).append(number)
    found = np.array(bins, np.int64)
    by_bin = np.lexsort((order, found))  # in a bin, the pieces are in the order that they came in
    return order[by_bin], found[by_bin]
