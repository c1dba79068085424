"""Integers in memory or in a file, which is mapped into memory, and opened in each process."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable.errors import ConfigurationError, DataError
from resumable.sources._files import Descriptor

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from resumable._randomness.keyed import IntArray
    from resumable.sources._ranged import TokenSource

__all__ = ["Array", "Mapped", "Stamp", "check_size", "digest_of", "places_of"]

_PLACES, _PLACE = 16, 1024  # what is read of a file to tell it from another one


class Stamp(NamedTuple):
    """What changes where a file is written again: its size in bytes, and when it was changed, in nanoseconds."""

    size: int
    changed: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """Return that of a file as it is now."""
        found = os.stat(path)  # noqa: PTH116  # as fast as it gets
        return cls(found.st_size, found.st_mtime_ns)


class Array:
    """Integers in memory.

    Args:
        values: shape `(n,)`.
    """

    def __init__(self, values: NDArray[Any]) -> None:
        self.name, self.values, self.stamp, self.path = "an array", values, None, None
        self.dtype, self.count = values.dtype, len(values)

    def read(self, start: int, stop: int) -> IntArray:
        """Return the values `start..stop-1` as 64-bit integers; a copy."""
        return self.values[start:stop].astype(np.int64)

    def digest(self) -> str:
        """Return what tells the values from others: their number, and some of them."""
        return digest_of(self)


class Mapped:
    """Integers of a file, which is mapped when they are first read in a process.

    Args:
        path: of the file.
        dtype: of the integers.
        offset: bytes before the first of them.
        count: how many there are; None: up to the end of the file.

    Raises:
        ConfigurationError: the file has another size than that.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], offset: int = 0, count: int | None = None) -> None:
        self.path, self.name, self.dtype, self._offset = path.resolve(), str(path), dtype, offset
        self.stamp = Stamp.of(path)
        self.count = check_size(str(path), self.stamp.size, dtype, offset, count)
        self._values: NDArray[Any] | None = None
        self._file: Descriptor | None = None

    def read(self, start: int, stop: int) -> IntArray:
        """Return the values `start..stop-1` as 64-bit integers; a copy.

        Raises:
            DataError: the file is another one than it was.
        """
        if self._values is None or self._file is None:
            self._file = Descriptor(str(self.path))
            self._check(self._file)
            self._values = np.memmap(self.path, self.dtype, "r", self._offset, (self.count,))
        self._check(self._file)  # reading what was cut off would end the process by SIGBUS
        return self._values[start:stop].astype(np.int64)

    def _check(self, file: Descriptor) -> None:
        found = os.fstat(file.number)
        now = Stamp(found.st_size, found.st_mtime_ns)
        if now != self.stamp:
            raise DataError(
                f"{self.name} was written again since it was opened.\n  bytes then: {self.stamp.size}\n"
                f"  bytes now:  {now.size}\nOther tokens would be read from here on. Start again with the file as it "
                "is, or put the old one back."
            )

    def digest(self) -> str:
        """Return what tells the file from others: its name, the number of its values, and some of them."""
        return f"{self.path.name} {digest_of(self)}"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_values": None, "_file": None}  # the mapping would be pickled as what is in it


def check_size(name: str, size: int, dtype: np.dtype[Any], offset: int, count: int | None) -> int:
    """Return how many integers a file has.

    Args:
        name: of the file.
        size: its bytes.
        dtype: of the integers.
        offset: bytes before the first of them.
        count: how many there have to be; None: up to the end of the file.

    Raises:
        ConfigurationError: it has no whole number of them, or fewer.
    """
    room, rest = divmod(size - offset, dtype.itemsize)
    if count is None and rest:
        raise ConfigurationError(
            f"{name} has {size} bytes, which is no whole number of {dtype} of {dtype.itemsize} bytes.\n"
            "It was cut, or has another dtype, and other tokens would be read. Copy it again, or give its dtype."
        )
    wanted = room if count is None else count
    if room < wanted:
        raise ConfigurationError(
            f"{name} was cut: it has to have {offset + wanted * dtype.itemsize} bytes and has {size}.\n"
            "Its last values are not there. Copy it again."
        )
    return wanted


def places_of(count: int) -> list[tuple[int, int]]:
    """Return which of so many values are looked at to tell them from others."""
    last = max(count - _PLACE, 0)
    return [(place, place + _PLACE) for place in sorted({last * number // (_PLACES - 1) for number in range(_PLACES)})]


def digest_of(source: TokenSource) -> str:
    """Return number, dtype and a digest of some of the values."""
    state = hashlib.blake2b(digest_size=8, person=b"resumable1")
    for start, stop in places_of(source.count):
        state.update(source.read(start, stop).astype("<i8").tobytes())
    return f"{source.count} {source.dtype.str} {state.hexdigest()}"
