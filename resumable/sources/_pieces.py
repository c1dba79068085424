"""A local cache of pieces of files. All processes of a machine share it, and read each piece from storage once."""

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
_AT_ONCE = 128  # pieces; each has an open lock file
_ABANDONED = 3600.0  # seconds, after which a lock or temporary file is removed


class Pieces:
    """A folder of pieces with a maximum size. The oldest pieces are removed first.

    A process that fetches a piece holds its lock, so no other process fetches it. If the process is killed, the system
    releases the lock. Pieces are written atomically. The name of a piece depends on the stamp of its file, so it is
    never used for a file that was rewritten.

    Args:
        folder: path of the folder. It is created if it does not exist.
        most: maximum size of all pieces in bytes.
        stamps: of the files.
        read: reads parts of the files.

    Raises:
        ConfigurationError: the folder cannot be created.
    """

    def __init__(
        self,
        folder: str,
        most: int,
        stamps: Mapping[str, Stamp],
        read: Callable[[Sequence[Part], Mapping[str, Stamp]], list[bytes]],
    ) -> None:
        self._folder, self._most, self._stamps, self._read = Path(folder), most, stamps, read
        self._known: set[Part] = set()  # pieces that this process has seen in the folder
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"cache={folder!r} is not a folder and cannot be created: {error}.\n"
                "Pass a folder on a local disk, or remove cache."
            ) from error

    def fetch(self, now: Iterable[Part], soon: Iterable[Part], keep: Iterable[Part]) -> None:
        """Fetch missing pieces, as far as there is room. Errors of pieces that are read ahead are ignored for now.

        Args:
            now: pieces that are needed now. If another process is fetching one, wait for it.
            soon: pieces that are needed later. If another process is fetching one, leave it to that process.
            keep: pieces that must not be removed.

        Raises:
            DataError: a piece that is needed now cannot be read.
        """
        with suppress(OSError, ImportError):  # disk full, or no locks on this system: read samples without the cache
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
        """Return parts of a piece; None if it is not in the folder."""
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

    # ------------------------------------------------------------------ one process fetches a piece

    def _claim(self, part: Part, locks: ExitStack) -> bool:
        """Return whether this process must fetch a piece: no other process does, and it is still missing."""
        import fcntl  # noqa: PLC0415  # not on Windows, where everything else works

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
        """Wait until the process that fetches a piece is done, or was killed."""
        import fcntl  # noqa: PLC0415  # the same

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
            read = self._read(now, self._stamps)  # later pieces may never be needed
        for part, data in zip([*now, *soon], read, strict=False):
            self._write(part, data)

    def _write(self, part: Part, data: bytes) -> None:
        with suppress(OSError):  # disk full: the samples are read from storage
            write_whole(self._path(part), lambda file: file.write(data))  # durably: later only headers are checked
            self._known.add(part)

    # ------------------------------------------------------------------ room

    def _fitting(self, now: list[Part], soon: list[Part], keep: set[Path]) -> tuple[list[Part], list[Part]]:
        """Make room for pieces, and return those that fit."""
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
                    elif found.st_mtime < time() - _ABANDONED:  # of a killed process
                        Path(entry.path).unlink()


def _release(number: int, path: Path) -> None:
    path.unlink(missing_ok=True)
    os.close(number)


class _Kept(NamedTuple):
    """A piece in the folder."""

    written: float
    size: int
    path: Path
