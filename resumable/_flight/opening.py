"""Opens the file of a rank: made whole, and put in the place of the earlier one, so that one of both is there."""

from __future__ import annotations

import errno
import mmap
import os
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from resumable._flight.layout import END, SIZE, pack_header, pack_tallies, word
from resumable._flight.records import FlightRecord, read_record
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from resumable._flight.layout import Header

if sys.platform != "win32":
    import fcntl

__all__ = ["TakenError", "check_folder", "look", "make", "opening"]


class TakenError(Exception):
    """The file belongs to a process that is alive.

    Args:
        record: what that process wrote.
    """

    def __init__(self, record: FlightRecord) -> None:
        super().__init__(f"the process {record.pid}, which is alive, writes it")
        self.record = record


def check_folder(folder: str) -> Path:
    """Make a folder for records, and see that there is room for one.

    Raises:
        ConfigurationError: nothing can be written there.
    """
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            _write(file.fileno(), bytes(SIZE))
    except OSError as error:
        raise ConfigurationError(
            f"the folder of flight_recorder cannot be written to: {error}.\n"
            "After a crash, no record would be there. Give a folder on a disk with room, or leave flight_recorder out."
        ) from error
    return path.resolve()


@contextmanager
def opening(folder: Path) -> Iterator[None]:
    """Let one process at a time open a file of a folder, where the file system can do that."""
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems know no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def look(path: Path) -> FlightRecord | None:
    """Read what an earlier process wrote.

    Raises:
        TakenError: it is no earlier one, as it is alive and writes.
        UnreadableError: something else is there.
        OSError: it cannot be read.
    """
    try:
        record = read_record(path)
    except FileNotFoundError:
        return None
    if record.alive and record.ended == "running":
        raise TakenError(record)
    return record


def make(path: Path, header: Header, tallies: Mapping[int, int]) -> mmap.mmap:
    """Make a file of its full size, put it in the place of an earlier one, and map it.

    Raises:
        OSError: it cannot be written; what was there before is still there.
    """
    content = bytearray(SIZE)
    packed = pack_header(header)
    content[: len(packed)] = packed
    at, packed = pack_tallies(tallies)
    content[at : at + len(packed)] = packed
    content[END * 8 : END * 8 + 8] = word("running").to_bytes(8, sys.byteorder)
    new = path.with_suffix(".new")
    try:
        with new.open("w+b") as file:
            _write(file.fileno(), bytes(content))
            memory = mmap.mmap(file.fileno(), SIZE)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    return memory


def _write(descriptor: int, content: bytes) -> None:
    """Write a file whose blocks are all there, so that nothing can fail when its memory is written."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, len(content))
    if os.write(descriptor, content) != len(content):
        raise OSError(errno.ENOSPC, "no room for the whole file")
    os.fsync(descriptor)
