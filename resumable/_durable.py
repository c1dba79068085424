"""What makes files durable, and whole."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, BinaryIO
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["sync_directory", "write_whole"]

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


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file that is there as a whole or not at all, however many processes write it.

    Args:
        path: of the file.
        write: writes its content into an open file.

    Raises:
        OSError: it could not be written, and nothing is left of it.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
