"""Integers of a remote file, read by ranges; and one way to open them, there or in a local file."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable.errors import ConfigurationError
from resumable.sources._files import Part, Stamp, is_remote
from resumable.sources._mapped import Array, Mapped, check_size, digest_of, places_of
from resumable.sources._patterns import base_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resumable._randomness.keyed import IntArray
    from resumable.sources._files import Files

__all__ = ["Place", "Ranged", "TokenSource", "beginning", "beside", "existing", "open_integers", "size_of"]

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


def _stamp(name: str, files: Files) -> Stamp:
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
