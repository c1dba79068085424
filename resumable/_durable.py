"""Files that are durable, and whole, and hashed while they are written."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from typing import TYPE_CHECKING, Any, BinaryIO
from uuid import uuid4

from resumable.failpoints import point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["CHUNK", "HashingFile", "create", "publish", "sync_directory", "write_whole"]

CHUNK = 8 << 20  # bytes handed to a file at once, so that a remote file never buffers a whole tensor
_HALF = 2  # the first write is the file's head, so that a part of the file is there at the second
_NO_FSYNC = (errno.EINVAL, errno.ENOTSUP)  # from file systems that know no fsync of a directory


def sync_directory(directory: str | Path) -> None:
    """Make the names in a directory durable, where the system can."""
    if os.name == "nt":  # Windows cannot open a directory, and keeps the order of its metadata by itself
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def create(path: Path, *, mode: str = "xb", points: bool = True) -> Iterator[BinaryIO]:
    """Open a file for writing; its content is durable when the block is left, and its name is not yet.

    Args:
        path: of the file.
        mode: how it is opened.
        points: come by the failpoints of a store.
    """
    with path.open(mode) as file:
        yield file  # type: ignore[misc]  # all modes are binary
        file.flush()
        if points:
            point("store.written", path)
        os.fsync(file.fileno())
    if points:
        point("store.synced", path)


def publish(temporary: Path, path: Path, *, points: bool = True) -> None:
    """Give a durable file its name, in one step, so that readers see the old bytes or the new."""
    if points:
        point("store.rename", path)
    temporary.replace(path)
    if points:
        point("store.renamed", path)
    sync_directory(path.parent)


def write_whole(
    path: Path, write: Callable[[BinaryIO], object], *, temporary: Path | None = None, points: bool = False
) -> None:
    """Write a file that is there as a whole or not at all, however many processes write it.

    Args:
        path: of the file.
        write: writes its content into an open file.
        temporary: of the file until it is whole; None for a name that nothing else has.
        points: come by the failpoints of a store.

    Raises:
        OSError: it could not be written, and nothing is left of it.
    """
    temporary = temporary or path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with create(temporary, mode="wb", points=points) as file:
            write(file)
        publish(temporary, path, points=points)
    finally:
        temporary.unlink(missing_ok=True)


class HashingFile:
    """A file for `torch.save` to write to: counts and hashes the bytes, and remembers the error of the storage.

    Args:
        file: is written.
        name: of the file, for a chaos run; None if it is not told.
    """

    def __init__(self, file: BinaryIO, name: str | None = None) -> None:
        self.file, self.name = file, name
        self.hash = hashlib.sha256()
        self.count = self.writes = 0
        self.error: Exception | None = None

    def fill(self, write: Callable[[HashingFile], object]) -> None:
        """Call `write` with this file, and raise the storage's error, which torch covers by its own."""
        try:
            write(self)
        except Exception:
            if self.error is not None:
                raise self.error from None
            raise

    def write(self, data: Any) -> int:
        """Write all of `data` in pieces; each is copied, as torch's memory is valid during this call only."""
        if self.error is not None:
            raise self.error
        self.writes += 1
        if self.writes == _HALF:
            point("store.half")
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), CHUNK):
                piece = bytes(view[start : start + CHUNK])
                self.file.write(piece)
                self.hash.update(piece)
                self.count += len(piece)
        except Exception as error:
            self.error = error
            raise
        return len(view)

    def flush(self) -> None:
        """Do nothing: closing the file flushes it."""
