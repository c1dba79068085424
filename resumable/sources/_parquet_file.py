"""Reads row groups of Parquet files: reads their bytes in a few ranges, decodes them with pyarrow, and caches some."""

from __future__ import annotations

import hashlib
import io
import os
from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable._distribution import pip_install
from resumable.errors import ConfigurationError, DataError, MissingDependencyError
from resumable.sources._files import Part, Stamp, is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from resumable.sources._files import Files


__all__ = [
    "File",
    "Footer",
    "Group",
    "Kept",
    "arrow",
    "check_same_types",
    "chosen_columns",
    "leaves_of",
    "open_footers",
    "place_of",
    "read_groups",
    "values_of",
]

_GAP = 1 << 16  # bytes between two columns that are still read as one range
_FOOTERS = 64  # cached in a process


class Group(NamedTuple):
    """A row group: its file, its number in the file, and its number of rows."""

    file: File
    number: int
    rows: int

    def __str__(self) -> str:
        return f"{self.file.name}, row group {self.number}"


class Kept:
    """A process's cache of decoded row groups, which keeps the most recently used ones.

    Args:
        most: maximum size in bytes. At least one row group is kept, even if it is larger.
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
        """Return the lock for threads. In a forked process, empty the cache first."""
        if self._process != os.getpid():
            self._forget()
        return self._lock

    def __contains__(self, number: int) -> bool:
        with self._own():
            return number in self._tables

    def table(self, number: int) -> Any:
        """Return a cached row group and mark it as used; None if it is not cached."""
        with self._own():
            table = self._tables.get(number)
            if table is not None:
                self._tables.move_to_end(number)
            return table

    def put(self, number: int, table: Any) -> None:
        """Cache a row group, and drop the least recently used ones if necessary."""
        with self._own():
            if number in self._tables:  # another thread was quicker
                return
            self.size += table.nbytes
            self._tables[number] = table
            while self.size > self._most and len(self._tables) > 1:
                self.size -= self._tables.popitem(last=False)[1].nbytes

    def footer(self, file: File, read: Callable[[], Any]) -> Any:
        """Return the metadata of a file. Read it if it is not cached."""
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
    """Read row groups as tables of pyarrow. Remote ones are requested at the same time.

    Raises:
        DataError: a file was removed or rewritten, or cannot be decoded.
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
    """Return the byte ranges of the columns. Neighbours are merged into one range."""
    metadata = footer.row_group(group.number)
    found: list[Part] = []
    for start, stop in sorted(place_of(metadata.column(leaf)) for leaf in leaves_of(footer, columns)):
        if found and start - found[-1].stop <= _GAP:
            found[-1] = Part(group.file.name, found[-1].start, max(stop, found[-1].stop))
        else:
            found.append(Part(group.file.name, start, stop))
    return found


def _refuse_other(file: File, files: Files) -> None:
    """Check that a local file was not rewritten. Remote files are checked once per process."""
    if is_remote(file.name):
        return
    try:
        now = files.stamp(file.name)
    except OSError:
        return  # reading raises the error
    if now != file.stamp:
        raise DataError(
            f"{file.name} was rewritten since it was opened.\n  bytes then: {file.stamp.size}\n"
            f"  bytes now:  {now.size}\nDifferent rows would be read from here on. Restore the old file, or start a "
            "new run with the new one."
        )


def _decoded(group: Group, footer: Any, columns: Sequence[str] | None, data: Iterable[tuple[int, bytes]]) -> Any:
    import pyarrow as pa  # noqa: PLC0415  # only needed for Parquet

    try:
        source = pa.PythonFile(_Ranges(data, group.file.stamp.size), "r")
        opened = arrow().ParquetFile(source, metadata=footer, pre_buffer=False, page_checksum_verification=True)
        table = opened.read_row_group(group.number, columns=columns, use_threads=False).combine_chunks()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(
            f"{group} cannot be decoded: {type(error).__name__}: {error}.\n"
            "It is damaged, or uses a feature that this version of pyarrow does not support. Copy the file again or "
            "upgrade pyarrow, then resume from the last checkpoint."
        ) from error
    if table.num_rows != group.rows:
        raise DataError(
            f"{group} has {table.num_rows} rows, but {group.rows} according to the footer.\n"
            "Wrong rows would be read. Write the file again."
        )
    return table


class _Ranges(io.RawIOBase):
    """A file object for pyarrow that has only some ranges of a file.

    Args:
        data: start and content of each range.
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


# ---------------------------------------------------------------------- footers

_MAGIC = b"PAR1"
_END = 8  # bytes: the length of the footer, and the magic
_SIGNATURE = 28  # bytes: a nonce and a tag after the footer, if columns are encrypted and the footer is not
_GUESS = 1 << 16  # bytes at the end of a file that are read first
_AT_ONCE = 8  # remote files


class File(NamedTuple):
    """A file, with its stamp and footer from the time when it was opened.

    Args:
        name: path or URL.
        stamp: changes if the file is replaced.
        footer: size of its footer in bytes.
        digest: of its footer.
    """

    name: str
    stamp: Stamp
    footer: int
    digest: str


class Footer(NamedTuple):
    """A file with the content of its footer.

    Args:
        file: the file.
        metadata: pyarrow's `FileMetaData`.
        content: the footer as bytes, in the form of a Parquet file without data.
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
        import pyarrow.parquet as found  # noqa: PLC0415  # only needed for Parquet
    except ImportError as error:
        raise MissingDependencyError(
            f"Parquet files need pyarrow, which cannot be imported: {error}.\nInstall it: {pip_install('parquet')}"
        ) from error
    return found


def open_footers(names: Sequence[str], files: Files) -> list[Footer]:
    """Read the footers of files.

    Raises:
        ConfigurationError: a file does not exist, is empty, truncated or encrypted, or is not a Parquet file.
    """
    opened = partial(_open, files=files)
    if not any(map(is_remote, names)):
        return list(map(opened, names))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(opened, names))


def read_again(file: File, files: Files) -> Any:
    """Return the metadata of a file that a different process has opened before.

    Raises:
        DataError: the file was rewritten since.
    """
    size = file.stamp.size
    (content,) = files.read([Part(file.name, size - _END - file.footer, size - _END)], {file.name: file.stamp})
    if _digest(content) != file.digest:
        raise DataError(
            f"{file.name} was rewritten since it was opened: its footer has changed.\nDifferent rows would be read "
            "from here on. Restore the old file, or start a new run with the new one."
        )
    return _parsed(file.name, _as_file(content))


def _open(name: str, files: Files) -> Footer:
    stamp = _stamp(name, files)
    if stamp.size < _END + len(_MAGIC):
        raise _no_parquet(name, f"it has only {stamp.size} bytes")
    content = _footer(name, stamp, files)
    metadata = _parsed(name, _as_file(content))
    if len(content) - metadata.serialized_size == _SIGNATURE:  # pyarrow would abort the process at such a column
        raise ConfigurationError(
            f"{name} has encrypted columns, which are not supported.\nWrite the file without encryption."
        )
    _check_ranges(name, metadata, stamp.size - _END - len(content))
    return Footer(File(name, stamp, len(content), _digest(content)), metadata, _as_file(content))


def _stamp(name: str, files: Files) -> Stamp:
    try:
        if not is_remote(name) and Path(name).is_dir():
            raise ConfigurationError(
                f"{name} is a folder, not a Parquet file.\nThe order of its files would not be fixed. Pass a pattern, "
                f'such as "{name}/*.parquet".'
            )
        return files.stamp(name)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigurationError(
            f"the Parquet file {name} does not exist.\nIts rows would be missing. Pass existing files, for example "
            'with a pattern such as "train-*.parquet".'
        ) from error
    except OSError as error:
        raise ConfigurationError(f"{name} cannot be read: {error}.\nCheck the storage and its permissions.") from error


def _footer(name: str, stamp: Stamp, files: Files) -> bytes:
    """Return the footer as bytes. A small one needs only one read."""
    read, size = partial(files.read, stamps={name: stamp}), stamp.size
    (tail,) = read([Part(name, max(size - _GUESS, 0), size)])
    if tail[-4:] != _MAGIC:
        if tail[-4:] == b"PARE":
            raise ConfigurationError(
                f"{name} has an encrypted footer, which is not supported.\nWrite the file without encryption."
            )
        raise _no_parquet(name, f"it ends with {tail[-4:]!r} instead of {_MAGIC!r}")
    length = int.from_bytes(tail[-_END:-4], "little")
    if length + _END + len(_MAGIC) > size:
        raise _no_parquet(name, f"its footer should have {length} bytes, but the file has only {size}")
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


def _check_ranges(name: str, metadata: Any, end: int) -> None:
    """Check that all row groups are inside the file."""
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for column in range(group.num_columns if group.num_rows else 0):
            start, stop = place_of(group.column(column))
            if start < len(_MAGIC) or stop > end or stop < start:
                path = group.column(column).path_in_schema
                raise _no_parquet(
                    name, f"column {path} of row group {number} should be at bytes {start}..{stop - 1} of {end}"
                )


def place_of(column: Any) -> tuple[int, int]:
    """Return the byte range of a column of a row group, as start and stop."""
    start = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset:
        start = min(start, column.dictionary_page_offset)
    return start, start + column.total_compressed_size


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8, person=b"resumable1").hexdigest()


def _no_parquet(name: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{name} is truncated, damaged or not a Parquet file: {why}.\n"
        "Copy or write it again, or remove it from the list of files."
    )


# ---------------------------------------------------------------------- columns, types and values


def chosen_columns(columns: Any, footer: Footer) -> list[str] | None:
    """Return the columns to read; None for all.

    Args:
        columns: names of columns, or paths of parts of nested columns, such as "point.x"; None for all.
        footer: of the file.

    Raises:
        ConfigurationError: a column does not exist, no column is chosen, or two columns have the same name.
    """
    own = footer.metadata.schema.to_arrow_schema().names
    twice = [name for name, count in Counter(own).items() if count > 1]
    if twice:
        raise ConfigurationError(
            f"{footer.file.name} has several columns with the name {twice[0]!r}.\n"
            "A row is a dict, so all but one would be lost. Write the file with unique names."
        )
    if columns is None:
        return None
    chosen = [columns] if isinstance(columns, str) else list(columns)
    known = _paths(footer)
    for name in chosen:
        if name not in known:
            raise ConfigurationError(
                f"{footer.file.name} has no column {name!r}.\n  its columns: {', '.join(own)}\n"
                "Pass names of its columns. For a part of a nested column, pass the path, such as point.x."
            )
    if not chosen:
        raise ConfigurationError(
            "columns=[] selects no columns, so rows would be empty.\nPass names of columns, or None for all."
        )
    return list(dict.fromkeys(chosen))


def _paths(footer: Footer) -> set[str]:
    """Return the names of all columns, and the paths of all parts of nested columns."""
    schema, found = footer.metadata.schema, set[str]()
    for number in range(len(schema)):
        path = schema.column(number).path
        while path:
            found.add(path)
            path = path.rpartition(".")[0]
    return found


def leaves_of(metadata: Any, columns: Sequence[str] | None) -> list[int]:
    """Return the numbers of the stored columns, which have no nesting."""
    paths = [metadata.schema.column(number).path for number in range(len(metadata.schema))]
    if columns is None:
        return list(range(len(paths)))
    return [number for number, path in enumerate(paths) if any(f"{path}.".startswith(f"{name}.") for name in columns)]


def types_of(footer: Footer, columns: Sequence[str] | None, text_of: Callable[[Any], str] = str) -> dict[str, str]:
    """Return a dict from name to type of the selected columns, with the selected parts of nested columns."""
    schema = footer.metadata.schema.to_arrow_schema()
    if columns is None:
        return {field.name: text_of(field.type) for field in schema}
    tops = dict.fromkeys(name if name in schema.names else _top(name, schema.names) for name in columns)
    return {top: text_of(schema.field(top).type) if top in columns else _parts(footer, top, columns) for top in tops}


def _values_in(kind: Any, *, top: bool = True) -> str:
    """Return a name for the Python values of a type, the same for all types with the same values."""
    import pyarrow as pa  # noqa: PLC0415  # only needed for Parquet

    types = pa.types
    if types.is_dictionary(kind):
        return _values_in(kind.value_type, top=top)
    if _is_list(kind, types):
        item = kind.value_type
        return f"list<{item if top and _is_number(item, types) else _values_in(item, top=False)}>"
    if types.is_struct(kind):
        return f"struct<{', '.join(f'{one.name}: {_values_in(one.type, top=False)}' for one in kind)}>"
    found = {
        "str": ("is_string", "is_large_string", "is_string_view"),
        "bytes": ("is_binary", "is_large_binary", "is_binary_view", "is_fixed_size_binary"),
        "date": ("is_date",),
    }
    names = (name for name, some in found.items() if any(getattr(types, one, bool)(kind) for one in some))
    return next(names, str(kind))


def _parts(footer: Footer, top: str, columns: Sequence[str]) -> str:
    """Return the types of the selected parts of a nested column."""
    schema = footer.metadata.schema
    leaves = [schema.column(number) for number in leaves_of(footer.metadata, columns)]
    own = [leaf for leaf in leaves if leaf.path.startswith(f"{top}.")]
    return ", ".join(f"{leaf.path} {leaf.physical_type} {leaf.logical_type}" for leaf in own)


def _top(path: str, names: Iterable[str]) -> str:
    return next(name for name in sorted(names, key=len, reverse=True) if path.startswith(f"{name}."))


def check_same_types(footers: Sequence[Footer], columns: Sequence[str] | None) -> dict[str, str]:
    """Return the types of the selected columns in the first file. The types in all files must have the same values.

    Raises:
        ConfigurationError: a column is missing in some files, or its type differs.
    """
    first, *others = footers
    types, values = types_of(first, columns), types_of(first, columns, _values_in)
    for other in others:
        chosen_columns(columns, other)
        own, others_values = types_of(other, columns), types_of(other, columns, _values_in)
        for name in {**types, **own}:
            if values.get(name) != others_values.get(name):
                raise ConfigurationError(
                    f"the column {name!r} differs between the files.\n"
                    f"  {first.file.name}: {types.get(name, 'no such column')}\n"
                    f"  {other.file.name}: {own.get(name, 'no such column')}\n"
                    "The structure of samples would depend on the file. Pass columns= that all files have with the "
                    "same type, write the files again, or combine them as separate sources with resumable.mix."
                )
    return types


def values_of(table: Any, rows: Sequence[int], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows of a table as dicts of Python values. Lists of numbers become arrays.

    Args:
        table: has the columns.
        rows: numbers of the rows.
        names: of the columns, in the order of the dicts.
    """
    taken = table.take(np.asarray(rows, np.int64)) if len(rows) != 1 else table.slice(rows[0], 1)
    columns = [_column(taken.column(name)) for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _column(column: Any) -> list[Any]:
    import pyarrow as pa  # noqa: PLC0415  # only needed for Parquet

    kind, types = column.type, pa.types
    if isinstance(kind, pa.FixedShapeTensorType):
        return [_tensor(one) for one in column]
    numbers = _is_list(kind, types) and _is_number(kind.value_type, types)
    return [_numbers(one.values) for one in column] if numbers else column.to_pylist()


def _is_list(kind: Any, types: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_number(kind: Any, types: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _tensor(scalar: Any) -> Any:
    return None if not scalar.is_valid else scalar.to_numpy().copy()


def _numbers(values: Any) -> Any:
    """Return a writable array; a list if some values are missing, and None if the list itself is."""
    if values is None:
        return None
    return values.to_pylist() if values.null_count else np.array(values.to_numpy(zero_copy_only=False))
