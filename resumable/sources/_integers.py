"""Integers in memory or in a file, which is mapped into memory, and opened in each process."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable.errors import ConfigurationError, DataError
from resumable.sources._files import Descriptor, Part, base_of, is_remote
from resumable.sources._files import Stamp as RemoteStamp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from resumable._randomness.keyed import IntArray
    from resumable.sources._files import Files


__all__ = [
    "Array",
    "Mapped",
    "Place",
    "Ranged",
    "Stamp",
    "TokenSource",
    "beginning",
    "beside",
    "digest_of",
    "existing",
    "open_integers",
    "places_of",
    "size_of",
]

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


# Integers of a remote file, read by ranges; and one way to open them, there or in a local file.

Place = Path | str  # of a local file, or the URL of a remote one


class Ranged:
    """Integers of a remote file, of which no more is read than what is asked for.

    Args:
        name: URL.
        files: reads it.
        dtype: of the integers.
        offset: bytes before the first of them.
        count: how many there are; None: up to the end of the file.

    Raises:
        ConfigurationError: the file has another size than that.
    """

    path = None  # nothing is kept beside it

    def __init__(
        self, name: str, files: Files, dtype: np.dtype[Any], offset: int = 0, count: int | None = None
    ) -> None:
        self.name, self.dtype, self._files, self._offset = name, dtype, files, offset
        self.stamp = _stamp(name, files)
        self.count = check_size(name, self.stamp.size, dtype, offset, count)
        self._held: dict[tuple[int, int], IntArray] = {}
        self._digest = ""

    def read(self, start: int, stop: int) -> IntArray:
        """Return the values `start..stop-1` as 64-bit integers; a copy.

        Raises:
            DataError: the file is gone or another one than it was, or the storage fails.
        """
        held = self._held.pop((start, stop), None)
        return self._read([(start, stop)])[0] if held is None else held

    def hold(self, spans: Iterable[tuple[int, int]]) -> None:
        """Read several spans at the same time, which `read` is asked for next; what was held before can go."""
        wanted = list(dict.fromkeys(spans))
        self._held = dict(zip(wanted, self._read(wanted), strict=True))

    def _read(self, spans: list[tuple[int, int]]) -> list[IntArray]:
        size, first = self.dtype.itemsize, self._offset
        within = [(min(start, self.count), min(stop, self.count)) for start, stop in spans]
        parts = [Part(self.name, first + start * size, first + stop * size) for start, stop in within if stop > start]
        found = iter(self._files.read(parts, {self.name: self.stamp}) if parts else [])
        read = [next(found) if stop > start else b"" for start, stop in within]
        return [np.frombuffer(data, self.dtype).astype(np.int64) for data in read]

    def digest(self) -> str:
        """Return what tells the file from others: its name, the number of its values, and some of them."""
        if not self._digest:
            self.hold(places_of(self.count))
            self._digest = f"{base_of(self.name)} {digest_of(self)}"
        return self._digest

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_held": {}}


TokenSource = Array | Mapped | Ranged


def open_integers(
    place: Place, files: Files, dtype: np.dtype[Any], offset: int = 0, count: int | None = None
) -> Mapped | Ranged:
    """Open the integers of a file; see `Mapped`."""
    if isinstance(place, str):
        return Ranged(place, files, dtype, offset, count)
    return Mapped(place, dtype, offset, count)


def existing(given: Any, files: Files) -> Place:
    """Return the place of a file.

    Raises:
        ConfigurationError: there is none.
    """
    if isinstance(given, str) and is_remote(given) and not given.startswith("file://"):
        _stamp(given, files)
        return given
    found = Path(str(given).removeprefix("file://"))
    if not found.is_file():
        raise _no_file(found)
    return found


def beside(place: Place, suffix: str, files: Files) -> Place | None:
    """Return the file of another suffix in the same folder; None where there is none."""
    if isinstance(place, Path):
        found = place.with_suffix(suffix)
        return found if found.is_file() else None
    other = place.removesuffix(Path(base_of(place)).suffix) + suffix
    with suppress(FileNotFoundError):
        files.stamp(other)
        return other
    return None


def beginning(place: Place, files: Files, count: int) -> bytes:
    """Return the first bytes of a file, at most so many."""
    if isinstance(place, Path):
        with place.open("rb") as file:
            return file.read(count)
    stamp = _stamp(place, files)
    (data,) = files.read([Part(place, 0, min(count, stamp.size))], {place: stamp})
    return data


def size_of(place: Place, files: Files) -> int:
    """Return the bytes of a file."""
    return place.stat().st_size if isinstance(place, Path) else _stamp(place, files).size


def _stamp(name: str, files: Files) -> RemoteStamp:
    try:
        return files.stamp(name)
    except FileNotFoundError as error:
        raise _no_file(name) from error
    except OSError as error:
        raise ConfigurationError(f"{name} cannot be read: {error}.\nLook after the storage and its rights.") from error


def _no_file(place: Place) -> ConfigurationError:
    return ConfigurationError(
        f"there is no file {place}.\nThere would be nothing to read. Give the path or URL of a .npy, a .bin, or "
        "Megatron's .bin with its .idx."
    )
