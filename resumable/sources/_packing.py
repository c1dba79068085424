"""Windows of documents as functions of (epoch, window): arithmetic over the sums of blocks of documents.

flat    the documents as they are stored, cut every `length` tokens, from a place that differs by epoch
concat  the documents of a block in an order that differs by epoch, one after the other, cut every `length` tokens
fit     the documents of a block best-fit into windows; one is cut only where it is longer than `length`
"""

from __future__ import annotations

import contextlib
import zipfile
from bisect import bisect_left, insort
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable._durable import write_whole
from resumable._randomness.keyed import derive
from resumable.errors import ConfigurationError
from resumable.samplers.permutation import Permutation
from resumable.sources.tokens import index_of, lengths_of, open_vector

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resumable._randomness.keyed import IntArray
    from resumable.sources._files import Files
    from resumable.sources._integers import TokenSource


__all__ = ["Concat", "Documents", "Fit", "Flat", "Pieces", "best_fit", "open_documents"]

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


# Lengths of documents: their sums by blocks, kept in a file beside them, so that later starts read no more.

_VERSION = 1
_AT_ONCE = 1 << 22  # lengths


def open_documents(documents: Any, tokens: Any, files: Files) -> TokenSource | None:
    """Open the lengths of the documents: those given, or those of the index beside a `.bin`; None where there are none.

    Raises:
        ConfigurationError: they are no integers of shape `(n,)`, there are none, or the index was cut.
    """
    if documents is None:
        index = index_of(tokens, files)
        return None if index is None else lengths_of(index, files)
    found = open_vector(documents, "the lengths of the documents", files)
    if not found.count:
        raise ConfigurationError(
            f"{found.name}: there are no documents.\nThere would be nothing to read. Check what wrote the lengths."
        )
    return found


class Documents:
    """The lengths of documents, in blocks.

    Args:
        lengths: of all documents.
        block: documents per block.
        total: tokens that all of them have to have.
        keep: keep sums in a file beside that of the lengths.

    Raises:
        ConfigurationError: they have another number of tokens, or a length is negative.

    Attributes:
        ends: tokens up to the end of each block, shape `(blocks,)`.
    """

    def __init__(self, lengths: TokenSource, block: int, total: int, *, keep: bool) -> None:
        self._source, self._size, self._keep = lengths, block, keep
        self.count = lengths.count
        self.ends = np.cumsum(self.kept(f"{block}", self._sum))
        if int(self.ends[-1]) != total:
            raise ConfigurationError(
                f"the lengths of the documents do not belong to the tokens.\n  tokens by the lengths: {self.ends[-1]}\n"
                f"  tokens there are:      {total}\nDocuments would begin in wrong places. Give one length for each "
                "document, in the order of the tokens: lengths, and not where the documents begin."
            )

    def block(self, number: int) -> IntArray:
        """Return the lengths of the documents of a block."""
        return self._source.read(number * self._size, (number + 1) * self._size)

    def _sum(self) -> IntArray:
        sums, step = [], max(_AT_ONCE // self._size, 1) * self._size
        for first in range(0, self.count, step):
            part = self._source.read(first, first + step)
            if part.min() < 0:
                wrong = int(np.flatnonzero(part < 0)[0])
                raise ConfigurationError(
                    f"the length of document {first + wrong} is {part[wrong]}.\nNo document has fewer than 0 tokens, "
                    "and all after it would begin in wrong places. Check what wrote the lengths."
                )
            sums.append(np.add.reduceat(part, np.arange(0, len(part), self._size), dtype=np.int64))
        return np.concatenate(sums)

    def kept(self, what: str, compute: Callable[[], IntArray]) -> IntArray:
        """Return an integer for each block: from the file beside the lengths, where there is one that belongs to them.

        Args:
            what: names the integers, in the name of the file.
            compute: computes them, where there is none. They are then written, if the folder can be written to.
        """
        source = self._source
        if not self._keep or source.path is None:
            return compute()
        path = source.path.with_name(f"{source.path.name}.packed-{what}.npz")
        mark = np.array([_VERSION, *source.stamp, source.count])
        found = _read(path, mark, -(-self.count // self._size))
        if found is None:
            found = compute()
            with contextlib.suppress(OSError):  # a folder that cannot be written to: computed again next time
                write_whole(path, partial(np.savez, mark=mark, values=found.astype(np.int64)))
        return found

    def digest(self) -> str:
        """Return what tells the lengths from others."""
        return self._source.digest()


def _read(path: Path, mark: IntArray, blocks: int) -> IntArray | None:
    """Return what is in a file; None where it is not there, damaged, or of other lengths."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            values: IntArray = file["values"]
            same = np.array_equal(file["mark"], mark)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return values if same and values.dtype == np.int64 and values.shape == (blocks,) else None
