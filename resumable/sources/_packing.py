"""Windows of documents as functions of (epoch, window): arithmetic over the sums of blocks of documents.

flat    the documents in stored order, cut every `length` tokens, with an offset that depends on the epoch
concat  the documents of a block in an order that depends on the epoch, cut every `length` tokens
fit     the documents of a block packed into windows by best fit; only documents longer than `length` are split
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
from resumable.errors import ConfigurationError, DataError
from resumable.samplers.permutation import Permutation
from resumable.sources._integers import Joined
from resumable.sources.tokens import index_of, lengths_of, open_vector, several

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resumable._randomness.keyed import IntArray
    from resumable.sources._files import Files
    from resumable.sources._integers import TokenSource


__all__ = ["Concat", "Documents", "Fit", "Flat", "Pieces", "best_fit", "open_documents"]

_KEPT = 128  # cached blocks of 100 kB
_KEPT_FITS = 512  # cached packings of 140 kB; each takes milliseconds to compute


class Pieces(NamedTuple):
    """Pieces of documents that fill a window, one after the other; arrays of shape `(pieces,)`.

    Args:
        document: number of each piece's document.
        first: index of the piece's first token in the document.
        length: number of tokens in the piece.
        at: index of the piece's first token among all tokens.
        ends: whether the document ends with the piece.
    """

    document: IntArray
    first: IntArray
    length: IntArray
    at: IntArray
    ends: Any

    @classmethod
    def joined(cls, parts: list[Pieces]) -> Pieces:
        """Concatenate several lists of pieces."""
        return parts[0] if len(parts) == 1 else cls(*map(np.concatenate, zip(*parts, strict=True)))


class _Block(NamedTuple):
    """Documents one after the other.

    Args:
        documents: their numbers.
        starts: start of each document in that order, and the end of the last one; shape `(documents + 1,)`.
        at: index of each document's first token among all tokens.
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
    """The base of the three packings.

    Args:
        lengths: returns the lengths of a block's documents.
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
        """Set the number of windows in each block."""
        self._until = np.cumsum(sizes)
        self.windows = int(self._until[-1])

    @property
    def sizes(self) -> IntArray:
        """Windows of each block, shape `(blocks,)`. One entry for all if windows cross the boundaries of blocks."""
        return np.diff(self._until, prepend=0)

    def _find(self, window: int) -> tuple[int, int]:
        """Return the block of a window, and the window's index in the block."""
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
    """Documents in stored order, cut every `length` tokens. Less than two windows of tokens are dropped.

    Args:
        targets: number of tokens that must follow the last window.
        given: arguments of all packings.
    """

    def __init__(self, *given: Any, targets: int) -> None:
        super().__init__(*given)
        self._set_until(np.array([max(int(self._ends[-1]) - self._length + 1 - targets, 0) // self._length]))

    def phase(self, epoch: int) -> int:
        """Return the start of an epoch's first window; 0 in epoch 0."""
        word = derive(self._seed, epoch, words=1, purpose=b"packed-phase")[0]
        return int(word) % self._length if epoch else 0

    def _order(self, epoch: int, number: int) -> _Block:  # noqa: ARG002  # stored order in all epochs
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
    """Documents shuffled within their block. The last tokens of a block are dropped if they do not fill a window."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._set_until(np.diff(self._ends, prepend=0) // self._length)

    def pieces(self, epoch: int, window: int) -> Pieces:
        """Return the pieces of a window."""
        number, own = self._find(window)
        start = own * self._length
        return self._block(epoch, number).span(start, start + self._length)


class Fit(_Packing):
    """Documents packed by best fit into windows of at most `length` tokens. Each token is in exactly one window.

    Args:
        counts: windows of each block, if known.
        given: arguments of all packings.
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
        """Return the number of windows of a block. It depends only on the lengths, so it is the same in all epochs."""
        counts, _, _ = _cut(self._lengths(number), self._length)
        return int(best_fit(counts, self._length)[1][-1]) + 1 if len(counts) else 0

    def _pack(self, epoch: int, number: int) -> tuple[Pieces, IntArray]:
        block = self._order(epoch, number)
        lengths = np.diff(block.starts)
        count, which, first = _cut(lengths, self._length)
        order, bins = best_fit(count, self._length)
        before = int(self._until[number - 1]) if number else 0
        _check_block(number, "windows", int(self._until[number]) - before, int(bins[-1]) + 1 if len(bins) else 0)
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
    """Cut documents into pieces of at most `most` tokens. Return each piece's length, document and start in it."""
    parts = -(-lengths // most)
    which = np.repeat(np.arange(len(lengths)), parts)
    within = np.arange(len(which)) - np.repeat(np.cumsum(parts) - parts, parts)
    first = within * most
    return np.minimum(lengths[which] - first, most), which, first


def best_fit(counts: IntArray, room: int) -> tuple[IntArray, IntArray]:
    """Put pieces into bins, the largest first, each into the fullest bin with enough room (best-fit decreasing).

    The number of bins does not depend on the order of the pieces, because bins with equal room are interchangeable.

    Args:
        counts: tokens of each piece, `1..room`.
        room: tokens that fit into a bin.

    Returns:
        The pieces sorted by bin, and the bin of each; shape `(pieces,)`.
    """
    order = np.argsort(-counts, kind="stable")
    rooms: list[int] = []  # the different rooms that bins have left, in ascending order
    having: dict[int, list[int]] = {}
    bins, last = [], 0
    for count in counts[order].tolist():
        tightest = bisect_left(rooms, count)
        if tightest == len(rooms):
            left, number, last = room, last, last + 1
        else:
            left = rooms[tightest]
            number = having[left].pop()
            if not having[left]:
                del rooms[tightest], having[left]
        bins.append(number)
        if left := left - count:
            if left not in having:
                insort(rooms, left)
            having.setdefault(left, []).append(number)
    found = np.array(bins, np.int64)
    by_bin = np.lexsort((order, found))  # within a bin, pieces keep their original order
    return order[by_bin], found[by_bin]


# ---------------------------------------------------------------------- lengths of documents

_VERSION = 1
_AT_ONCE = 1 << 22  # lengths


def open_documents(documents: Any, tokens: Any, files: Files) -> TokenSource | None:
    """Open the lengths of the documents: the user's, or those in the index of a `.bin`; None if there are neither.

    Raises:
        ConfigurationError: the lengths are not integers of shape `(n,)` or empty, or the index is truncated.
    """
    if documents is None:
        places = several(tokens, files) or [tokens]
        indices = [index_of(one, files) for one in places]
        own = [lengths_of(index, files) for index in indices if index is not None]
        if own and len(own) < len(places):
            raise ConfigurationError(
                f"{places[indices.index(None)]} has no .idx next to it, but some files of the list have one.\n"
                "Its documents are unknown. Copy its index, or pass documents=."
            )
        return _joined(own) if own else None
    listed = several(documents, files) or [documents]
    found = _joined([open_vector(one, "the lengths of the documents", files) for one in listed])
    if not found.count:
        raise ConfigurationError(f"{found.name} has no lengths of documents.\nCheck the program that wrote them.")
    return found


def _joined(parts: list[TokenSource]) -> TokenSource:
    return parts[0] if len(parts) == 1 else Joined(parts)


class Documents:
    """The lengths of documents, in blocks. The sums of the blocks are saved next to them for later runs.

    Args:
        lengths: of all documents.
        block: documents per block.
        total: number of tokens, which must be the sum of the lengths.
        keep: save the sums in a file next to the lengths.

    Raises:
        ConfigurationError: the sum of the lengths is different, or a length is negative.

    Attributes:
        ends: tokens up to the end of each block, shape `(blocks,)`.
    """

    def __init__(self, lengths: TokenSource, block: int, total: int, *, keep: bool) -> None:
        self._source, self._size, self._keep = lengths, block, keep
        self.count = lengths.count
        self.ends = np.cumsum(self.kept(f"{block}", self._sum))
        if int(self.ends[-1]) != total:
            raise ConfigurationError(
                "the lengths of the documents do not match the tokens.\n"
                f"  sum of the lengths: {self.ends[-1]}\n  number of tokens:   {total}\n"
                "Documents would start at wrong tokens. Pass the length of each document in the order of the tokens, "
                "not its start."
            )

    def block(self, number: int) -> IntArray:
        """Return the lengths of the documents of a block.

        Raises:
            DataError: their sum differs from the saved one.
        """
        found = self._source.read(number * self._size, (number + 1) * self._size)
        _check_block(
            number, "tokens", int(self.ends[number] - (self.ends[number - 1] if number else 0)), int(found.sum())
        )
        return found

    def _sum(self) -> IntArray:
        sums, step = [], max(_AT_ONCE // self._size, 1) * self._size
        for first in range(0, self.count, step):
            part = self._source.read(first, first + step)
            if part.min() < 0:
                wrong = int(np.flatnonzero(part < 0)[0])
                raise ConfigurationError(
                    f"the length of document {first + wrong} is negative: {part[wrong]}.\nAll later documents would "
                    "start at wrong tokens. Check the program that wrote the lengths."
                )
            sums.append(np.add.reduceat(part, np.arange(0, len(part), self._size), dtype=np.int64))
        return np.concatenate(sums)

    def kept(self, what: str, compute: Callable[[], IntArray]) -> IntArray:
        """Return an integer for each block, from a file next to the lengths if there is one that matches.

        Args:
            what: part of the file's name.
            compute: computes the integers if the file is missing. They are then saved, if the folder is writable.
        """
        source = self._source
        if not self._keep or source.path is None:
            return compute()
        path = source.path.with_name(f"{source.path.name}.packed-{what}.npz")
        mark = np.array([_VERSION, *source.stamp, source.count])
        found = _read(path, mark, -(-self.count // self._size))
        if found is None:
            found = compute()
            with contextlib.suppress(OSError):  # if the folder is not writable, compute them again next time
                write_whole(path, partial(np.savez, mark=mark, values=found.astype(np.int64)))
        return found

    def digest(self) -> str:
        """Return a text that identifies the lengths."""
        return self._source.digest()


def _check_block(number: int, what: str, saved: int, found: int) -> None:
    if found != saved:
        raise DataError(
            f"the lengths of the documents have changed: block {number} had {saved} {what}, but has {found} now.\n"
            "Windows would have tokens of other documents. Restore the lengths. If an earlier run saved its sums of "
            "other lengths next to them, delete these files (*.packed-*.npz) and start a new run."
        )


def _read(path: Path, mark: IntArray, blocks: int) -> IntArray | None:
    """Return the integers in a file; None if it is missing, damaged, or belongs to different lengths."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            values: IntArray = file["values"]
            same = np.array_equal(file["mark"], mark)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    return values if same and values.dtype == np.int64 and values.shape == (blocks,) else None
