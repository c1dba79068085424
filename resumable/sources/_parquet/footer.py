"""Footers: what a Parquet file says of its row groups and columns, read at the start and by each process."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable._distribution import pip_install
from resumable.errors import ConfigurationError, DataError, MissingDependencyError
from resumable.sources._files import Part, Stamp, is_remote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable.sources._files import Files

__all__ = ["File", "Footer", "arrow", "open_footers", "place_of", "read_again"]

_MAGIC = b"PAR1"
_END = 8  # bytes: the length of the footer, and the magic
_GUESS = 1 << 16  # bytes that are read at first of the end of a file
_AT_ONCE = 8  # remote files


class File(NamedTuple):
    """A file as it was when it was opened.

    Args:
        name: path or URL.
        stamp: tells it from the one that it may be replaced by.
        footer: bytes of its footer.
        digest: of its footer.
    """

    name: str
    stamp: Stamp
    footer: int
    digest: str


class Footer(NamedTuple):
    """A file with what its footer says.

    Args:
        file: it.
        metadata: pyarrow's `FileMetaData`.
        content: the footer as bytes, with the magic before it, as pyarrow takes it for a file without data.
    """

    file: File
    metadata: Any
    content: bytes


def arrow() -> Any:
    """Return `pyarrow.parquet`.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import pyarrow.parquet as found  # noqa: PLC0415  # for those who read Parquet
    except ImportError as error:
        raise MissingDependencyError(
            f"Parquet files are read by pyarrow, which failed to import: {error}.\nInstall it: {pip_install('parquet')}"
        ) from error
    return found


def open_footers(names: Sequence[str], files: Files) -> list[Footer]:
    """Read the footers of files.

    Raises:
        ConfigurationError: a file is not there, empty, cut, encrypted, or no Parquet file.
    """
    opened = partial(_open, files=files)
    if not any(map(is_remote, names)):
        return list(map(opened, names))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(opened, names))


def read_again(file: File, files: Files) -> Any:
    """Return the metadata of a file that was opened before, as another process has to.

    Raises:
        DataError: it is another file than it was.
    """
    size = file.stamp.size
    (content,) = files.read([Part(file.name, size - _END - file.footer, size - _END)], {file.name: file.stamp})
    if _digest(content) != file.digest:
        raise DataError(
            f"{file.name} has another footer than when it was opened.\nOther rows would be read from here on. Start "
            "again with the file as it is, or put the old one back."
        )
    return _parsed(file.name, _as_file(content))


def _open(name: str, files: Files) -> Footer:
    stamp = _stamp(name, files)
    if stamp.size < _END + len(_MAGIC):
        raise _no_parquet(name, f"it has {stamp.size} bytes")
    content = _footer(name, stamp, files)
    metadata = _parsed(name, _as_file(content))
    _check_places(name, metadata, stamp.size - _END - len(content))
    return Footer(File(name, stamp, len(content), _digest(content)), metadata, _as_file(content))


def _stamp(name: str, files: Files) -> Stamp:
    try:
        if not is_remote(name) and Path(name).is_dir():
            raise ConfigurationError(
                f"{name} is a folder, and no Parquet file.\nIts files would be read in no certain order. Give a "
                f'pattern, such as "{name}/*.parquet".'
            )
        return files.stamp(name)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigurationError(
            f"there is no Parquet file {name}.\nIts rows would be left out. Name the files that there are, as in "
            '"train-*.parquet".'
        ) from error
    except OSError as error:
        raise ConfigurationError(f"{name} cannot be read: {error}.\nLook after the storage and its rights.") from error


def _footer(name: str, stamp: Stamp, files: Files) -> bytes:
    """Return the footer as bytes: of small ones with one read."""
    read, size = partial(files.read, stamps={name: stamp}), stamp.size
    (tail,) = read([Part(name, max(size - _GUESS, 0), size)])
    if tail[-4:] != _MAGIC:
        other = " Its columns are encrypted, which is not supported." if tail[-4:] == b"PARE" else ""
        raise _no_parquet(name, f"it ends with {tail[-4:]!r} in place of {_MAGIC!r}.{other}")
    length = int.from_bytes(tail[-_END:-4], "little")
    if length + _END + len(_MAGIC) > size:
        raise _no_parquet(name, f"its footer would have {length} bytes, but the file has {size}")
    if length + _END <= len(tail):
        return tail[len(tail) - _END - length : -_END]
    (content,) = read([Part(name, size - _END - length, size - _END)])
    return content


def _as_file(footer: bytes) -> bytes:
    return _MAGIC + footer + len(footer).to_bytes(4, "little") + _MAGIC


def _parsed(name: str, content: bytes) -> Any:
    import pyarrow as pa  # noqa: PLC0415  # as in arrow()

    try:
        return arrow().read_metadata(pa.BufferReader(content))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _no_parquet(name, f"its footer cannot be read: {str(error).splitlines()[0]}") from error


def _check_places(name: str, metadata: Any, end: int) -> None:
    """Refuse a file whose row groups are said to be where there are none of its bytes."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for column in range(group.num_columns if group.num_rows else 0):
            start, stop = place_of(group.column(column))
            if start < len(_MAGIC) or stop > end or stop < start:
                path = group.column(column).path_in_schema
                raise _no_parquet(
                    name, f"column {path} of row group {number} would be bytes {start}..{stop - 1} of {end}"
                )


def place_of(column: Any) -> tuple[int, int]:
    """Return the first byte of a column of a row group, and the one after its last."""
    start = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset:
        start = min(start, column.dictionary_page_offset)
    return start, start + column.total_compressed_size


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8, person=b"resumable1").hexdigest()


def _no_parquet(name: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{name} was cut or damaged, or is no Parquet file: {why}.\n"
        "Its rows would be left out. Copy or write it again, or leave it out of the files."
    )
