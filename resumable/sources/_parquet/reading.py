"""Reads row groups: their bytes in a few ranges, decoded by pyarrow, and the last ones kept up to a number of bytes."""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable.errors import DataError
from resumable.sources._files import Part, is_remote
from resumable.sources._parquet.columns import leaves_of
from resumable.sources._parquet.footer import arrow, place_of, read_again

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from resumable.sources._files import Files
    from resumable.sources._parquet.footer import File

__all__ = ["Group", "Kept", "read_groups"]

_GAP = 1 << 16  # bytes between two columns that are read along with them
_FOOTERS = 64  # that a process keeps


class Group(NamedTuple):
    """A row group: its file, its number in that, and its rows."""

    file: File
    number: int
    rows: int

    def __str__(self) -> str:
        return f"{self.file.name}, row group {self.number}"


class Kept:
    """What a process keeps of row groups that it has read: the last used ones, up to a number of bytes.

    Args:
        most: bytes; one row group is kept however large it is.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._forget()

    def _forget(self) -> None:
        self._process, self._lock = os.getpid(), Lock()
        self._tables: OrderedDict[int, Any] = OrderedDict()
        self._footers: OrderedDict[str, Any] = OrderedDict()
        self.size = 0

    def _own(self) -> Lock:
        """Return what keeps threads apart; a forked process begins with nothing."""
        if self._process != os.getpid():
            self._forget()
        return self._lock

    def __contains__(self, number: int) -> bool:
        with self._own():
            return number in self._tables

    def table(self, number: int) -> Any:
        """Return a row group that is kept, as the last used one; None where it is not."""
        with self._own():
            table = self._tables.get(number)
            if table is not None:
                self._tables.move_to_end(number)
            return table

    def put(self, number: int, table: Any) -> None:
        """Keep a row group, and let go of those that were not used for longest."""
        with self._own():
            if number in self._tables:  # another thread was quicker
                return
            self.size += table.nbytes
            self._tables[number] = table
            while self.size > self._most and len(self._tables) > 1:
                self.size -= self._tables.popitem(last=False)[1].nbytes

    def footer(self, file: File, read: Callable[[], Any]) -> Any:
        """Return the metadata of a file, which are read where they are not kept."""
        with self._own():
            found = self._footers.get(file.name)
        if found is None:
            found = read()
        with self._lock:
            self._footers[file.name] = found
            self._footers.move_to_end(file.name)
            while len(self._footers) > _FOOTERS:
                self._footers.popitem(last=False)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {"_most": self._most}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()


def read_groups(groups: Sequence[Group], columns: Sequence[str] | None, files: Files, kept: Kept) -> list[Any]:
    """Read row groups, remote ones at the same time; each as a table of pyarrow.

    Raises:
        DataError: a file is gone or another one than it was, or what is in it cannot be decoded.
    """
    for file in {group.file.name: group.file for group in groups}.values():
        _refuse_other(file, files)
    footers = [kept.footer(group.file, partial(read_again, group.file, files)) for group in groups]
    ranges = [_ranges(group, footer, columns) for group, footer in zip(groups, footers, strict=True)]
    parts = [part for some in ranges for part in some]
    read = iter(files.read(parts, {group.file.name: group.file.stamp for group in groups}))
    found = []
    for group, footer, some in zip(groups, footers, ranges, strict=True):
        found.append(_decoded(group, footer, columns, [(part.start, next(read)) for part in some]))
    return found


def _ranges(group: Group, footer: Any, columns: Sequence[str] | None) -> list[Part]:
    """Return where the columns are: one range where they are neighbours."""
    metadata = footer.row_group(group.number)
    found: list[Part] = []
    for start, stop in sorted(place_of(metadata.column(leaf)) for leaf in leaves_of(footer, columns)):
        if found and start - found[-1].stop <= _GAP:
            found[-1] = Part(group.file.name, found[-1].start, max(stop, found[-1].stop))
        else:
            found.append(Part(group.file.name, start, stop))
    return found


def _refuse_other(file: File, files: Files) -> None:
    """Refuse a local file that is another one by now; of remote ones, that is looked at once in each process."""
    if is_remote(file.name):
        return
    try:
        now = files.stamp(file.name)
    except OSError:
        return  # the read says what is wrong
    if now != file.stamp:
        raise DataError(
            f"{file.name} was written again since it was opened.\n  bytes then: {file.stamp.size}\n"
            f"  bytes now:  {now.size}\nOther rows would be read from here on. Start again with the file as it is, or "
            "put the old one back."
        )


def _decoded(group: Group, footer: Any, columns: Sequence[str] | None, data: Iterable[tuple[int, bytes]]) -> Any:
    import pyarrow as pa  # noqa: PLC0415  # for those who read Parquet

    try:
        source = pa.PythonFile(_Ranges(data, group.file.stamp.size), "r")
        opened = arrow().ParquetFile(source, metadata=footer, pre_buffer=False, page_checksum_verification=True)
        table = opened.read_row_group(group.number, columns=columns, use_threads=False).combine_chunks()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(
            f"{group} cannot be decoded: {type(error).__name__}: {error}.\n"
            "It was damaged since it was written, or has what this version of pyarrow does not know. Copy the file "
            "again, or leave it out; then resume from the last checkpoint."
        ) from error
    if table.num_rows != group.rows:
        raise DataError(
            f"{group} has {table.num_rows} rows, but its footer says {group.rows}.\n"
            "Others would be read in their place. Write the file again."
        )
    return table


class _Ranges(io.RawIOBase):
    """Some ranges of a file as a file, for pyarrow, which reads nothing else.

    Args:
        data: first byte and content of each.
        size: of the file.
    """

    def __init__(self, data: Iterable[tuple[int, bytes]], size: int) -> None:
        super().__init__()
        self._data, self._size, self._at = list(data), size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        stop = self._size if size is None or size < 0 else min(self._at + size, self._size)
        for start, content in self._data:
            if start <= self._at and stop <= start + len(content):
                found = content[self._at - start : stop - start]
                self._at = stop
                return found
        raise OSError(f"bytes {self._at}..{stop - 1} were not read")
