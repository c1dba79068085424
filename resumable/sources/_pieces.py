"""Pieces of files in a local folder, which all processes of a machine share: each is read from the storage once."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable._durable import write_whole
from resumable.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from resumable.sources._files import Part, Stamp

__all__ = ["Pieces"]

_SUFFIX = ".piece"
_AT_ONCE = 128  # pieces; each has a file that is open as its lock
_ABANDONED = 3600.0  # seconds


class _Kept(NamedTuple):
    """A piece in the folder."""

    written: float
    size: int
    path: Path


class Pieces:
    """A folder of pieces, of at most so many bytes; the oldest go first.

    A process that fetches a piece holds its lock, so that no other one does; if it is killed, the system releases the
    lock. A piece is there as a whole or not at all. Its name has the stamp of the file that it is of, so it is
    never taken for one of a file that was written again.

    Args:
        folder: it; made where there is none.
        most: bytes that the pieces may have.
        stamps: of the files.
        read: reads parts of them.

    Raises:
        ConfigurationError: the folder cannot be made.
    """

    def __init__(
        self,
        folder: str,
        most: int,
        stamps: Mapping[str, Stamp],
        read: Callable[[Sequence[Part], Mapping[str, Stamp]], list[bytes]],
    ) -> None:
        self._folder, self._most, self._stamps, self._read = Path(folder), most, stamps, read
        self._known: set[Part] = set()  # of those that were there when this process last looked
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"the cache {folder!r} is no folder, and cannot be made one: {error}.\n"
                "Nothing could be read ahead. Give a folder on a local disk, or leave cache out."
            ) from error

    def fetch(self, now: Iterable[Part], soon: Iterable[Part], keep: Iterable[Part]) -> None:
        """See that pieces are there, as far as there is room; an error in what is read ahead is left for later.

        Args:
            now: needed now; where another process fetches one, this one waits for it.
            soon: needed later; what another process fetches is left to it.
            keep: what is not to go.

        Raises:
            DataError: a piece that is needed now cannot be read.
        """
        with suppress(OSError, ImportError):  # a disk that is full, or a system without locks: samples are read alone
            self._fetch(self._missing(now), self._missing(soon), {self._path(part) for part in keep})

    def _fetch(self, first: list[Part], then: list[Part], kept: set[Path]) -> None:
        while first or then:
            some, first = first[:_AT_ONCE], first[_AT_ONCE:]
            more = then[: _AT_ONCE - len(some)]
            then = then[len(more) :]
            with ExitStack() as locks:
                mine = [part for part in some if self._claim(part, locks)]
                ahead = [part for part in more if self._claim(part, locks)]
                self._fill(mine, ahead, kept)
            for part in some:
                if part not in mine and not self._has(part):
                    with self._waiting(part):
                        self._fill([] if self._has(part) else [part], [], kept)

    def take(self, piece: Part, parts: Sequence[Part]) -> list[bytes] | None:
        """Return parts of a piece; None where it is not there."""
        try:
            number = os.open(self._path(piece), os.O_RDONLY)
        except OSError:
            self._known.discard(piece)
            return None
        try:
            found = [os.pread(number, part.stop - part.start, part.start - piece.start) for part in parts]
        except OSError:
            return None
        finally:
            os.close(number)
        return found if [len(one) for one in found] == [part.stop - part.start for part in parts] else None

    def _missing(self, parts: Iterable[Part]) -> list[Part]:
        return [part for part in dict.fromkeys(parts) if part not in self._known and not self._has(part)]

    def _has(self, part: Part) -> bool:
        try:
            there = os.stat(self._path(part)).st_size == part.stop - part.start  # noqa: PTH116  # as fast as it gets
        except OSError:
            return False
        if there:
            self._known.add(part)
        return there

    def _path(self, part: Part) -> Path:
        told = json.dumps([*part, *self._stamps[part.name]]).encode()
        return self._folder / f"{hashlib.blake2b(told, digest_size=12).hexdigest()}{_SUFFIX}"

    # ------------------------------------------------------------------ one process fetches it

    def _claim(self, part: Part, locks: ExitStack) -> bool:
        """Return whether this process is to fetch a piece: no other one does, and it is not there by now."""
        import fcntl  # noqa: PLC0415  # Windows has none, and all else here works there

        path = self._path(part).with_suffix(".lock")
        number = os.open(path, os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(number)
            return False
        locks.callback(partial(_release, number, path))
        return not self._has(part)

    @contextmanager
    def _waiting(self, part: Part) -> Iterator[None]:
        """Wait for the process that fetches a piece, or that was killed while it did."""
        import fcntl  # noqa: PLC0415  # likewise

        path = self._path(part).with_suffix(".lock")
        number = os.open(path, os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
            yield
        finally:
            _release(number, path)

    def _fill(self, now: list[Part], soon: list[Part], keep: set[Path]) -> None:
        now, soon = self._fitting(now, soon, keep)
        try:
            read = self._read([*now, *soon], self._stamps)
        except DataError:
            if not soon:
                raise
            read = self._read(now, self._stamps)  # what is ahead may never be needed
        for part, data in zip([*now, *soon], read, strict=False):
            self._write(part, data)

    def _write(self, part: Part, data: bytes) -> None:
        with suppress(OSError):  # a disk that is full: the samples are read from the storage
            write_whole(self._path(part), lambda file: file.write(data))  # durably, as nothing but headers is looked at
            self._known.add(part)

    # ------------------------------------------------------------------ room

    def _fitting(self, now: list[Part], soon: list[Part], keep: set[Path]) -> tuple[list[Part], list[Part]]:
        """Make room for pieces, and return those for which there is some."""
        if not now and not soon:
            return now, soon
        kept = sorted(self._kept())
        used = sum(one.size for one in kept)
        wanted = sum(part.stop - part.start for part in (*now, *soon))
        for one in kept:
            if used + wanted <= self._most:
                break
            if one.path not in keep:
                with suppress(OSError):
                    one.path.unlink()
                used -= one.size
        room, fitting = self._most - used, set[Any]()
        for part in (*now, *soon):
            if part.stop - part.start <= room:
                room -= part.stop - part.start
                fitting.add(part)
        return [part for part in now if part in fitting], [part for part in soon if part in fitting]

    def _kept(self) -> Iterator[_Kept]:
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    found = entry.stat()
                    if entry.name.endswith(_SUFFIX):
                        yield _Kept(found.st_mtime, found.st_size, Path(entry.path))
                    elif found.st_mtime < time() - _ABANDONED:  # of a process that was killed
                        Path(entry.path).unlink()


def _release(number: int, path: Path) -> None:
    path.unlink(missing_ok=True)
    os.close(number)
