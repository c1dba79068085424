"""Durable, atomic files, hashed while they are written."""

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

CHUNK = 8 << 20  # bytes per write, so a remote file never buffers a whole tensor
_HALF = 2  # the first write is the file's header, so part of the data exists at the second
_NO_FSYNC = (errno.EINVAL, errno.ENOTSUP)  # raised by file systems without fsync for directories


def sync_directory(directory: str | Path) -> None:
    """Make the names in a directory durable, if the system can."""
    if os.name == "nt":  # Windows cannot open a directory, and keeps the order of its metadata on its own
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
    """Open a file for writing. Its content is durable when the block exits; its name is not durable yet.

    Args:
        path: of the file.
        mode: how it is opened.
        points: whether to pass the failpoints of a store.
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
    """Rename a durable file to its final name atomically; readers see the old bytes or the new ones."""
    if points:
        point("store.rename", path)
    temporary.replace(path)
    if points:
        point("store.renamed", path)
    sync_directory(path.parent)


def write_whole(
    path: Path, write: Callable[[BinaryIO], object], *, temporary: Path | None = None, points: bool = False
) -> None:
    """Write a file atomically, even if several processes write it.

    Args:
        path: of the file.
        write: writes the content into an open file.
        temporary: name of the file until it is complete; None for a unique name.
        points: whether to pass the failpoints of a store.

    Raises:
        OSError: it could not be written. Nothing is left of it.
    """
    temporary = temporary or path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with create(temporary, mode="wb", points=points) as file:
            write(file)
        publish(temporary, path, points=points)
    finally:
        temporary.unlink(missing_ok=True)


class HashingFile:
    """A file for `torch.save` that counts and hashes the bytes, and remembers the error of the storage.

    Args:
        file: the file to write to.
        name: of the file, for a chaos run; None if it has none.
    """

    def __init__(self, file: BinaryIO, name: str | None = None) -> None:
        self.file, self.name = file, name
        self.hash = hashlib.sha256()
        self.count = self.writes = 0
        self.error: Exception | None = None

    def fill(self, write: Callable[[HashingFile], object]) -> None:
        """Call `write` with this file, and raise the storage's error instead of the one that PyTorch raises."""
        try:
            write(self)
        except Exception:
            if self.error is not None:
                raise self.error from None
            raise

    def write(self, data: Any) -> int:
        """Write all of `data` in pieces. Each piece is copied: PyTorch's memory is valid only during this call."""
        if self.error is not None:
            raise self.error
        self.writes += 1
        if self.writes == _HALF:
            point("store.half")
        with memoryview(data) as whole, whole.cast("B") as view:
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
