"""Vectors of integers: in memory, in a local file that is mapped into memory, in a remote file, or in several files."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from contextlib import suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import numpy as np

from resumable.errors import ConfigurationError, DataError
from resumable.sources._files import Descriptor, Part, base_of, is_remote, limit_open
from resumable.sources._files import Stamp as RemoteStamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from resumable._randomness.keyed import IntArray
    from resumable.sources._files import Files


__all__ = [
    "Array",
    "Joined",
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

_PLACES, _PLACE = 16, 1024  # number and length of the parts that the digest of a file covers


class Array:
    """Integers in memory.

    Args:
        values: shape `(n,)`.
    """

    def __init__(self, values: NDArray[Any]) -> None:
        self.name, self.values, self.stamp, self.path = "an array", values, None, None
        self.dtype, self.count = values.dtype, len(values)

    def read(self, start: int, stop: int) -> IntArray:
        """Return a copy of the values `start..stop-1` as 64-bit integers."""
        return self.values[start:stop].astype(np.int64)

    def digest(self) -> str:
        """Return a text that identifies the values: their number, and a digest of some of them."""
        return digest_of(self)


class Mapped:
    """Integers in a local file. Each process maps it when it reads, and keeps a limited number of files open.

    Args:
        path: of the file.
        dtype: of the integers.
        offset: bytes before the first integer.
        count: number of integers; None for all up to the end of the file.

    Raises:
        ConfigurationError: the size of the file does not match.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], offset: int = 0, count: int | None = None) -> None:
        self.path, self.name, self.dtype, self._offset = path.resolve(), str(path), dtype, offset
        self.stamp = Stamp.of(path)
        self.count = check_size(str(path), self.stamp.size, dtype, offset, count)
        self._opened: tuple[Descriptor, NDArray[Any]] | None = None

    def read(self, start: int, stop: int) -> IntArray:
        """Return a copy of the values `start..stop-1` as 64-bit integers.

        Raises:
            DataError: the file was rewritten since it was opened.
        """
        file, values = self._opened or self._open()
        self._check(file)  # reading beyond the end of a truncated file would kill the process with SIGBUS
        return values[start:stop].astype(np.int64)

    def _open(self) -> tuple[Descriptor, NDArray[Any]]:
        file = Descriptor(str(self.path))
        self._check(file)
        with os.fdopen(file.number, "rb", closefd=False) as opened:
            self._opened = found = file, np.memmap(opened, self.dtype, "r", self._offset, (self.count,))
        limit_open(partial(_close, ref(self)))
        return found

    def _check(self, file: Descriptor) -> None:
        found = os.fstat(file.number)
        now = Stamp(found.st_size, found.st_mtime_ns)
        if now != self.stamp:
            raise DataError(
                f"{self.name} was rewritten since it was opened.\n  bytes then: {self.stamp.size}\n"
                f"  bytes now:  {now.size}\nDifferent tokens would be read from here on. Restore the old file, or "
                "start a new run with the new one."
            )

    def digest(self) -> str:
        """Return a text that identifies the file: its name, the number of values, and a digest of some of them."""
        return f"{self.path.name} {digest_of(self)}"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}  # pickle would copy all values of the mapping


def _close(owner: ref[Mapped]) -> None:
    mapped = owner()
    if mapped is not None:
        mapped._opened = None  # noqa: SLF001  # of this module


class Ranged:
    """Integers in a remote file. Only the requested ranges are read.

    Args:
        name: URL of the file.
        files: reads it.
        dtype: of the integers.
        offset: bytes before the first integer.
        count: number of integers; None for all up to the end of the file.

    Raises:
        ConfigurationError: the size of the file does not match.
    """

    path = None  # no sidecar next to a remote file

    def __init__(
        self, name: str, files: Files, dtype: np.dtype[Any], offset: int = 0, count: int | None = None
    ) -> None:
        self.name, self.dtype, self._files, self._offset = name, dtype, files, offset
        self.stamp = _stamp(name, files)
        self.count = check_size(name, self.stamp.size, dtype, offset, count)
        self._held: dict[tuple[int, int], IntArray] = {}
        self._digest = ""

    def read(self, start: int, stop: int) -> IntArray:
        """Return a copy of the values `start..stop-1` as 64-bit integers.

        Raises:
            DataError: the file was removed or rewritten, or the storage fails.
        """
        held = self._held.pop((start, stop), None)
        return self._read([(start, stop)])[0] if held is None else held

    def hold(self, spans: Iterable[tuple[int, int]]) -> None:
        """Read several ranges at the same time for the next calls of `read`. Earlier ranges are dropped."""
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
        """Return a text that identifies the file: its name, the number of values, and a digest of some of them."""
        if not self._digest:
            self.hold(places_of(self.count))
            self._digest = f"{base_of(self.name)} {digest_of(self)}"
        return self._digest

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_held": {}}


class Joined:
    """Integers in several files, one after the other.

    Args:
        parts: the files, in order.
    """

    path = stamp = None  # no sidecar

    def __init__(self, parts: Sequence[TokenSource]) -> None:
        self._parts = list(parts)
        self.dtype: np.dtype[Any] = parts[0].dtype
        self.name: str = f"{parts[0].name} .. {parts[-1].name}"
        self._ends: list[int] = list(accumulate(part.count for part in parts))
        self.count: int = self._ends[-1]

    def _within(self, start: int, stop: int) -> Iterator[tuple[TokenSource, int, int]]:
        """Yield the parts of a range, each with its own start and stop."""
        stop = min(stop, self.count)
        while start < stop:
            number = bisect_right(self._ends, start)
            part, end = self._parts[number], self._ends[number]
            first = end - part.count
            yield part, start - first, min(stop, end) - first
            start = end

    def read(self, start: int, stop: int) -> IntArray:
        """Return a copy of the values `start..stop-1` as 64-bit integers; see the files' own `read`."""
        read = [part.read(first, last) for part, first, last in self._within(start, stop)]
        return read[0] if len(read) == 1 else np.concatenate([*read, np.empty(0, np.int64)])

    def hold(self, spans: Iterable[tuple[int, int]]) -> None:
        """Read ranges of remote files for the next calls of `read`, the ranges of each file at the same time."""
        wanted: dict[int, tuple[Ranged, list[tuple[int, int]]]] = {}
        for part, first, last in (one for span in spans for one in self._within(*span)):
            if isinstance(part, Ranged):
                wanted.setdefault(id(part), (part, []))[1].append((first, last))
        for part, some in wanted.values():
            part.hold(some)

    def place(self, start: int, stop: int) -> tuple[str, int]:
        """Return the names of the files of a range, and its start in the first of them."""
        found = list(self._within(start, stop))
        return " + ".join(part.name for part, _, _ in found), found[0][1]

    def digest(self) -> str:
        """Return a text that identifies the files: their number, the number of values, and a digest of theirs."""
        state = hashlib.blake2b(digest_size=8, person=b"resumable1")
        for part in self._parts:
            state.update(f"{part.digest()}\n".encode("utf-8", "surrogateescape"))
        return f"{len(self._parts)} files {self.count} {state.hexdigest()}"


TokenSource = Array | Mapped | Ranged | Joined
Place = Path | str  # path of a local file, or URL of a remote one


def open_integers(
    place: Place, files: Files, dtype: np.dtype[Any], offset: int = 0, count: int | None = None
) -> Mapped | Ranged:
    """Open the integers in a file; see `Mapped`."""
    if isinstance(place, str):
        return Ranged(place, files, dtype, offset, count)
    return Mapped(place, dtype, offset, count)


def existing(given: Any, files: Files) -> Place:
    """Return the path or URL of a file.

    Raises:
        ConfigurationError: the file does not exist.
    """
    if isinstance(given, str) and is_remote(given) and not given.startswith("file://"):
        _stamp(given, files)
        return given
    found = Path(str(given).removeprefix("file://"))
    if not found.is_file():
        raise _no_file(found)
    return found


def beside(place: Place, suffix: str, files: Files) -> Place | None:
    """Return the file with a different extension in the same folder; None if there is none."""
    if isinstance(place, Path):
        found = place.with_suffix(suffix)
        return found if found.is_file() else None
    other = place.removesuffix(Path(base_of(place)).suffix) + suffix
    with suppress(FileNotFoundError):
        files.stamp(other)
        return other
    return None


def beginning(place: Place, files: Files, count: int) -> bytes:
    """Return at most `count` bytes from the start of a file."""
    if isinstance(place, Path):
        with place.open("rb") as file:
            return file.read(count)
    stamp = _stamp(place, files)
    (data,) = files.read([Part(place, 0, min(count, stamp.size))], {place: stamp})
    return data


def size_of(place: Place, files: Files) -> int:
    """Return the size of a file in bytes."""
    return place.stat().st_size if isinstance(place, Path) else _stamp(place, files).size


def _stamp(name: str, files: Files) -> RemoteStamp:
    try:
        return files.stamp(name)
    except FileNotFoundError as error:
        raise _no_file(name) from error
    except OSError as error:
        raise ConfigurationError(f"{name} cannot be read: {error}.\nCheck the storage and its permissions.") from error


def _no_file(place: Place) -> ConfigurationError:
    return ConfigurationError(
        f"the file {place} does not exist.\nPass the path or URL of a .npy, a .bin, or a Megatron .bin with its .idx."
    )


def check_size(name: str, size: int, dtype: np.dtype[Any], offset: int, count: int | None) -> int:
    """Return the number of integers in a file.

    Args:
        name: of the file.
        size: of the file, in bytes.
        dtype: of the integers.
        offset: bytes before the first integer.
        count: expected number of integers; None for all up to the end of the file.

    Raises:
        ConfigurationError: the size is not a multiple of the dtype's, or the file is too small.
    """
    room, rest = divmod(size - offset, dtype.itemsize)
    if count is None and rest:
        raise ConfigurationError(
            f"{name} has {size} bytes, which is not a multiple of {dtype.itemsize} bytes for dtype {dtype}.\n"
            "It is truncated or has a different dtype, so wrong tokens would be read. Copy it again, or pass its dtype."
        )
    wanted = room if count is None else count
    if room < wanted:
        raise ConfigurationError(
            f"{name} is truncated: it must have {offset + wanted * dtype.itemsize} bytes, but has {size}.\n"
            "Its last values are missing. Copy it again."
        )
    return wanted


def places_of(count: int) -> list[tuple[int, int]]:
    """Return the ranges of the values that a digest covers."""
    last = max(count - _PLACE, 0)
    return [(start, start + _PLACE) for start in sorted({last * number // (_PLACES - 1) for number in range(_PLACES)})]


def digest_of(source: TokenSource) -> str:
    """Return the number and dtype of the values, and a digest of some of them."""
    state = hashlib.blake2b(digest_size=8, person=b"resumable1")
    for start, stop in places_of(source.count):
        state.update(source.read(start, stop).astype("<i8").tobytes())
    return f"{source.count} {source.dtype.str} {state.hexdigest()}"


class Stamp(NamedTuple):
    """Changes if a file is rewritten: its size in bytes, and its modification time in nanoseconds."""

    size: int
    changed: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """Return the current stamp of a file."""
        found = os.stat(path)  # noqa: PTH116  # as fast as it gets
        return cls(found.st_size, found.st_mtime_ns)
