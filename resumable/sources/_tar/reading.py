"""The bytes of samples: read at their places, several at once, or by blocks that are fetched ahead."""

from __future__ import annotations

import operator
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from resumable.sources._files import Part, is_remote
from resumable.sources._pieces import Pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from resumable._randomness.keyed import IntArray
    from resumable.protocols import Upcoming
    from resumable.sources._files import Files
    from resumable.sources._tar.shards import Shard

__all__ = ["Reading"]

_GAP, _GAP_REMOTE = 1 << 12, 1 << 16  # bytes between two samples that are read along with them
_MOST = 1 << 26  # bytes that are read as one range


class Reading:
    """Reads samples of shards by their numbers.

    Args:
        shards: in their order.
        files: reads them.
        cache: folder for pieces, and how many bytes it may have; None without.

    Attributes:
        count: number of samples.
    """

    def __init__(self, shards: Sequence[Shard], files: Files, cache: tuple[str, int] | None) -> None:
        self._shards, self._files = shards, files
        self._ends = list(accumulate(shard.count for shard in shards))
        self.count = self._ends[-1]
        self._stamps = {shard.name: shard.stamp for shard in shards}
        self._remote = any(is_remote(shard.name) for shard in shards)
        self._fetched: dict[int, bytes | memoryview] = {}
        self._pieces = None if cache is None else Pieces(*cache, self._stamps, files.read)

    def find(self, index: int) -> tuple[Shard, int]:
        """Return the shard of a sample, and the number of the sample in it.

        Raises:
            IndexError: there is no such sample.
        """
        number = operator.index(index)
        if not 0 <= number < self.count:
            raise IndexError(f"there are the samples 0..{self.count - 1}, so there is no sample {number}")
        at = self._at(number)
        return self._shards[at], number - (self._ends[at - 1] if at else 0)

    def _at(self, number: int) -> int:
        return bisect_right(self._ends, number)

    def part(self, number: int) -> Part:
        """Return where the bytes of a sample are, from the header of its first member on."""
        shard, row = self.find(number)
        return Part(shard.name, *shard.index.span(row))

    def get(self, number: int) -> bytes | memoryview:
        """Return the bytes of a sample: those that were fetched, or read now."""
        data = self._fetched.get(number)
        return self._files.read([self.part(number)], self._stamps)[0] if data is None else data

    def prefetch(self, indices: Iterable[int], upcoming: Callable[[], Upcoming | None]) -> None:
        """Fetch samples that will be asked for one by one; where there is a cache, by the blocks that they are in."""
        blocks = None if self._pieces is None else upcoming()
        if self._pieces is not None and blocks is not None:
            self._fetched = self._from_pieces(self._pieces, indices, blocks)
        elif self._remote:
            self._fetched = self.fetch(indices)

    def _from_pieces(self, pieces: Pieces, indices: Iterable[int], blocks: Upcoming) -> dict[int, bytes | memoryview]:
        """Return the bytes of samples that are in pieces, after those are fetched; others are read when asked for."""
        here, soon = self._pieces_of(blocks.here), self._pieces_of(blocks.soon)
        wanted: dict[Part, dict[int, Part]] = {}
        for number in dict.fromkeys(map(operator.index, indices)):
            part = self.part(number)
            some = here.get(part.name, [])
            at = bisect_right(some, part.start, key=_start) - 1
            if at >= 0 and _inside(part, some[at]):  # else it only fills up the batch
                wanted.setdefault(some[at], {})[number] = part
        ahead = [piece for some in soon.values() for piece in some]
        pieces.fetch(wanted, ahead, [*ahead, *(piece for some in here.values() for piece in some)])
        found: dict[int, bytes | memoryview] = {}
        for piece, parts in wanted.items():
            found.update(zip(parts, pieces.take(piece, list(parts.values())) or (), strict=False))
        return {number: data for number, data in found.items() if self._fits(number, data)}

    def _pieces_of(self, blocks: IntArray) -> dict[str, list[Part]]:
        """Return the pieces in which blocks are, by shards; one that goes over the end of a shard is several."""
        found: dict[str, list[Part]] = {}
        for begin, stop in blocks.tolist():
            first = begin
            while first < stop:
                last = min(stop, self._ends[self._at(first)])
                name, start, _ = self.part(first)
                found.setdefault(name, []).append(Part(name, start, self.part(last - 1).stop))
                first = last
        return {name: sorted(parts) for name, parts in found.items()}

    def _fits(self, number: int, data: bytes | memoryview) -> bool:
        shard, row = self.find(number)
        return shard.index.fits(row, data)

    def fetch(self, indices: Iterable[int]) -> dict[int, bytes | memoryview]:
        """Return the bytes of samples, each from the header of its first member on."""
        parts = {number: self.part(number) for number in sorted({operator.index(index) for index in indices})}
        ranges = _joined(list(parts.values()), _GAP_REMOTE if self._remote else _GAP)
        read = zip(ranges, self._files.read(ranges, self._stamps), strict=True)
        found: dict[int, bytes | memoryview] = {}
        data = next(read, (Part("", 0, 0), b""))
        for number, part in parts.items():
            while not _inside(part, data[0]):
                data = next(read)
            begin = part.start - data[0].start
            found[number] = memoryview(data[1])[begin : begin + part.stop - part.start]
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_fetched": {}}


def _start(part: Part) -> int:
    return part.start


def _joined(parts: list[Part], gap: int) -> list[Part]:
    """Return ranges that hold parts, which are in ascending order: neighbours of a shard are in one of them."""
    found: list[Part] = []
    for part in parts:
        last = found[-1] if found else None
        near = last is not None and last.name == part.name and part.start - last.stop <= gap
        if last is not None and near and part.stop - last.start <= _MOST:
            found[-1] = Part(part.name, last.start, part.stop)
        else:
            found.append(part)
    return found


def _inside(part: Part, other: Part) -> bool:
    return part.name == other.name and other.start <= part.start and part.stop <= other.stop
