"""Reading: each process that reads samples notes which one, in memory of a file that outlives the process.

Every reader has a word of 8 bytes: 0 where it reads no sample, else the sample's index and one, times a prime. It is
stored at once, so it is never torn, and a damaged one is no multiple of the prime.
"""

from __future__ import annotations

import mmap
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable._fetch.failures import worker_number

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["Reading", "Spot", "sample_of"]

_PRIME = 65521
_MOST = 1 << 47  # indices


class Spot(NamedTuple):
    """Where the words of the readers are.

    Args:
        path: of the file.
        head: what it begins with, as long as it is of this process and not of a later one.
        size: of the file, in bytes.
        first: number of the word of the process that has the file; those of its workers follow.
        readers: how many words there are.
    """

    path: str
    head: bytes
    size: int
    first: int
    readers: int


class Reading:
    """What a reader notes its samples by. Until it is told where, and in processes of no concern, it notes nothing.

    A worker that is forked has the memory; one that gets a pickled copy opens the file.
    """

    def __init__(self, spot: Spot | None = None) -> None:
        self._spot, self._owner = spot, 0
        self._words: Any = None
        self._here: tuple[int, Any, int] = (0, None, 0)  # process, memory, and number of its word

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the place, as memory cannot be."""
        return Reading, (self._spot,)

    # ------------------------------------------------------------------ where samples are read

    @contextmanager
    def noting(self, source: Any) -> Iterator[Any]:
        """Note each sample that is read from what this gives, until its end, after which none is read."""
        words, at = self._place()
        if words is None:
            yield source
            return
        try:
            yield _Noting(source, words, at)
        finally:
            words[at] = 0

    def _place(self) -> tuple[Any, int]:
        if self._here[0] != os.getpid():
            self._here = os.getpid(), *self._find()
        return self._here[1:]

    def _find(self) -> tuple[Any, int]:
        spot, reader = self._spot, 0
        if spot is not None and self._owner != os.getpid():
            number = worker_number()
            reader = spot.readers if number is None else number + 1
        if spot is None or reader >= spot.readers:
            return None, 0
        return self._words if self._words is not None else _opened(spot), spot.first + reader

    # ------------------------------------------------------------------ the process that has the file

    def begin(self, words: Any, spot: Spot) -> None:
        """Note from now on, in this process and its workers.

        Args:
            words: the memory.
            spot: where it is, for those that do not inherit it.
        """
        self._words, self._spot, self._owner, self._here = words, spot, os.getpid(), (0, None, 0)

    def end(self) -> None:
        """Note nothing from now on, in this process: it is a fork of the one that has the file."""
        self._words, self._spot, self._owner, self._here = None, None, 0, (0, None, 0)

    def forget(self, but: Collection[int] = ()) -> None:
        """Forget what workers read that are no more, except some, which died of it."""
        if (spot := self._spot) is None or self._owner != os.getpid():
            return
        for worker in range(spot.readers - 1):
            if worker not in but:
                self._words[spot.first + 1 + worker] = 0

    def of(self, worker: int) -> int | None:
        """Return the sample that a worker reads, or read when it died."""
        spot = self._spot
        if spot is None or self._words is None or worker + 1 >= spot.readers:
            return None
        return sample_of(self._words[spot.first + 1 + worker])


class _Noting:
    """A source that notes which sample is read.

    Args:
        source: has `source[index]`.
        words: the memory.
        at: number of the word.
    """

    __slots__ = ("_at", "_source", "_words")

    def __init__(self, source: Any, words: Any, at: int) -> None:
        self._source, self._words, self._at = source, words, at

    def __getitem__(self, index: Any) -> Any:
        number = issubclass(type(index), int) and 0 <= index < _MOST  # a user's sampler may give keys of any type
        self._words[self._at] = (index + 1) * _PRIME if number else 0
        return self._source[index]


def sample_of(word: int) -> int | None:
    """Return the sample that a word stands for; None for none, and where the word is damaged."""
    found, rest = divmod(word, _PRIME)
    return found - 1 if found and not rest and found <= _MOST else None


def _opened(spot: Spot) -> Any:
    try:
        with Path(spot.path).open("r+b") as file:
            memory = mmap.mmap(file.fileno(), spot.size)
    except (OSError, ValueError):  # removed, or cut
        return None
    return memoryview(memory).cast("Q") if memory[: len(spot.head)] == spot.head else None
