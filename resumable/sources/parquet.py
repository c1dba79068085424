"""Parquet: rows of Parquet files as samples. Row groups are read when they are needed."""

from __future__ import annotations

import hashlib
import operator
from bisect import bisect_right
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable.errors import ConfigurationError
from resumable.samplers.base import check_length
from resumable.sources._files import Files, base_of, find_files, is_remote
from resumable.sources._parquet_file import (
    Group,
    Kept,
    arrow,
    check_same_types,
    chosen_columns,
    leaves_of,
    open_footers,
    read_groups,
    values_of,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from resumable._randomness.keyed import IntArray
    from resumable.sources._parquet_file import Footer


__all__ = ["Parquet", "Row"]

_CACHE = 1 << 28
_SHORT = 100  # characters of each field in a state


class Parquet:
    """Rows of Parquet files as samples by index; for `wrap`, a `DataLoader`, `resumable.mix`, or use on its own.

    A sample is a dict from column names to Python values, as in `pyarrow.Table.to_pylist`: `int`, `float`, `str`,
    `bytes`, `datetime`, a list, a dict for a struct, None for a missing value. A list of numbers without missing values
    is a NumPy array.

    Row groups are read as a whole, and each process caches the most recently used ones. `sizes` are their numbers of
    rows. `shuffle="blocks"` mixes the rows of as many row groups as fit into the cache.

    Args:
        files: path or URL of a file, a pattern with `{000..099}`, `{a,b}`, `*`, `?` or `[...]`, or a list of these.
            The order is the list's. Files of a pattern are in alphabetical order. Any URL that fsspec supports works.
        columns: names of the columns to read, or paths of parts of nested columns, such as "point.x". None means all.
        filters: as in pyarrow: a list of `(column, operator, value)` that must all hold, a list of such lists, or an
            expression. They only skip row groups whose statistics show that no row matches. All rows of the other row
            groups are kept, even if they do not match.
        transform: function that converts each row to the sample.
        cache_bytes: maximum size of the decoded row groups in each process's cache, in bytes. The last one used is
            always kept.
        storage_options: for the filesystem of URLs, as in fsspec.

    Raises:
        ConfigurationError: a file or column does not exist; a file is truncated, damaged or not a Parquet file; the
            types differ between files; or no row is left.
        MissingDependencyError: pyarrow, braceexpand or a filesystem is not installed.
        DataError: while reading, if a file was rewritten, truncated or removed since, or cannot be decoded.
    """

    def __init__(  # noqa: PLR0913  # keyword-only options with defaults
        self,
        files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        columns: Iterable[str] | None = None,
        filters: Any = None,
        transform: Callable[[dict[str, Any]], Any] | None = None,
        cache_bytes: int = _CACHE,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        arrow()
        self._files, self._transform = Files(storage_options), transform
        self._most = check_length(cache_bytes, "cache_bytes")
        self._kept, self._ready = Kept(self._most), dict[int, dict[str, Any]]()
        names = find_files(files, self._files, what="Parquet file", suffix=".parquet", extra="parquet")
        footers, expression = open_footers(names, self._files), expression_of(filters)
        self._columns = chosen_columns(columns, footers[0])
        self._types = check_same_types(footers, self._columns)
        self._opened = [footer.file for footer in footers]
        found = [(footer, number) for footer in footers for number in kept_groups(footer, expression)]
        self._groups = [Group(one.file, number, one.metadata.row_group(number).num_rows) for one, number in found]
        self._ends: list[int] = np.cumsum([group.rows for group in self._groups], dtype=np.int64).tolist()
        self._memory = [memory_of(one.metadata, number, self._columns) for one, number in found]
        self._remote = any(map(is_remote, names))
        self._stored = sum(footer.metadata.num_row_groups for footer in footers)
        self._refuse_empty(filters)
        self._mean = max(sum(self._memory) // len(self._memory), 1)

    def _refuse_empty(self, filters: Any) -> None:
        if not self._groups:
            why = "" if filters is None else f" that may match filters={filters!r}"
            raise ConfigurationError(
                f"{_named(self._opened)} has no rows{why}, in {self._stored} row groups.\n"
                "Check the program that wrote the files, and the filters."
            )

    # ------------------------------------------------------------------ description

    @property
    def files(self) -> list[str]:
        """Paths or URLs of the files, in order."""
        return [file.name for file in self._opened]

    @property
    def sizes(self) -> IntArray:
        """Number of rows of each row group, for `shuffle="blocks"`; shape `(row groups,)`."""
        return np.array([group.rows for group in self._groups], np.int64)

    @property
    def resumable_blocks(self) -> dict[str, Any]:
        """Settings of `shuffle="blocks"`: row groups as blocks, and windows of which two fit into the cache."""
        return {"block": None, "window": max(self._most // (2 * self._mean), 1)}

    @property
    def wider_blocks(self) -> str:
        """Advice for a window of `{window}` row groups, for a warning of `shuffle="blocks"`."""
        return (
            f"Use Parquet(..., cache_bytes={2 * self._mean} * {{window}}) or more; each process that reads needs this "
            "much memory. Or write the files with smaller row groups, which needs no additional memory."
        )

    def locate(self, indices: Iterable[int]) -> list[Row]:
        """Return the locations of samples, for example of `Loader.sample_indices`, without reading them."""
        found = [self._find(index) for index in indices]
        return [Row(self._groups[group].file.name, self._groups[group].number, row) for group, row in found]

    @cached_property
    def resumable_identity(self) -> dict[str, str]:
        """Identifies the data in a state: names of files, rows, columns with types, and a digest of the footers."""
        columns = ", ".join(f"{name} {kind}" for name, kind in self._types.items())
        footers = [f"{base_of(file.name)} {file.stamp.size} {file.digest}" for file in self._opened]
        groups = [f"{base_of(group.file.name)} {group.number} {group.rows}" for group in self._groups]
        return {
            "files": _named(self._opened),
            "columns": columns if len(columns) <= _SHORT else f"{columns[:_SHORT]}... {_digest([columns])}",
            "rows": f"{len(self)} in {len(self._groups)} of {self._stored} row groups, {_digest(groups)}",
            "footers": _digest(footers),
        }

    def fingerprint(self) -> str:
        """Return a text that identifies the samples: file names, rows, column types, and a digest of the footers."""
        return "; ".join(self.resumable_identity.values())

    def __len__(self) -> int:
        return self._ends[-1]

    def __repr__(self) -> str:
        return f"Parquet({_named(self._opened)}, <{len(self)} rows in {len(self._groups)} row groups>)"

    # ------------------------------------------------------------------ reading

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> Any:
        number = operator.index(index)
        row = self._ready.pop(number, None)
        return self._made(self._rows([number])[0] if row is None else row)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples. Samples of one row group are taken from it together."""
        return list(map(self._made, self._rows([operator.index(index) for index in indices])))

    def resumable_prefetch(self, indices: Sequence[int], upcoming: Callable[[], Any]) -> None:
        """Take the next samples from their row groups together, and read remote row groups ahead."""
        numbers = [operator.index(index) for index in indices]
        self._ready = dict(zip(numbers, self._rows(numbers, self._ahead(upcoming)), strict=True))

    def _ahead(self, upcoming: Callable[[], Any]) -> list[int]:
        blocks = upcoming() if self._remote else None
        return [] if blocks is None else list(dict.fromkeys(self._find(first)[0] for first in blocks.soon[:, 0]))

    def _made(self, row: dict[str, Any]) -> Any:
        return row if self._transform is None else self._transform(row)

    def _find(self, index: int) -> tuple[int, int]:
        """Return the index of a sample's row group in the list, and its row in the row group."""
        number = operator.index(index)
        if not 0 <= number < len(self):
            raise IndexError(f"sample {number} does not exist: the samples are 0..{len(self) - 1}")
        group = bisect_right(self._ends, number)
        return group, number - (self._ends[group - 1] if group else 0)

    def _rows(self, indices: Sequence[int], ahead: Sequence[int] = ()) -> list[dict[str, Any]]:
        """Return rows, in the order of the indices."""
        found = [self._find(index) for index in indices]
        by_group: dict[int, list[int]] = {}
        for at, (group, _) in enumerate(found):
            by_group.setdefault(group, []).append(at)
        rows: list[Any] = [None] * len(indices)
        for group, table in self._tables(list(by_group), ahead):
            some = by_group.get(group, ())
            values = values_of(table, [found[at][1] for at in some], list(self._types)) if some else ()
            for at, value in zip(some, values, strict=True):
                rows[at] = value
        return rows

    def _tables(self, groups: Sequence[int], ahead: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield row groups: first the cached ones, then the missing ones and those to read ahead."""
        missing = []
        for group in groups:
            table = self._kept.table(group)
            if table is None:
                missing.append(group)
            else:
                yield group, table
        wanted = dict.fromkeys([*missing, *(group for group in ahead if group not in self._kept)])
        for some in self._portions(list(wanted)):
            of_files = [self._groups[group] for group in some]
            tables = read_groups(of_files, self._columns, self._files, self._kept)
            for group, table in zip(some, tables, strict=True):
                self._kept.put(group, table)
                yield group, table

    def _portions(self, groups: Sequence[int]) -> Iterator[list[int]]:
        """Yield row groups to read at the same time: one for local files, as many as there is room for otherwise."""
        portion, size = list[int](), 0
        for group in groups:
            size += self._memory[group]
            if portion and (size > self._most // 2 or not self._remote):
                yield portion
                portion, size = [], self._memory[group]
            portion.append(group)
        if portion:
            yield portion

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_ready": {}}


def _named(files: Sequence[Any]) -> str:
    names = [base_of(file.name) for file in files]
    if len(names) == 1:
        return names[0]
    some = ", ".join(names)
    return f"{len(names)} files: " + (some if len(some) <= _SHORT else f"{names[0]} .. {names[-1]}")


def _digest(texts: Sequence[str]) -> str:
    state = hashlib.blake2b(digest_size=8, person=b"resumable1")
    for text in texts:
        content = text.encode("utf-8", "surrogateescape")
        state.update(len(content).to_bytes(8, "little") + content)
    return state.hexdigest()


class Row(NamedTuple):
    """The location of a sample: its file, row group and row in the row group. Both numbers start at 0."""

    file: str
    row_group: int
    row: int

    def __str__(self) -> str:
        return f"row {self.row} of row group {self.row_group} of {self.file}"


# ---------------------------------------------------------------------- choosing row groups

_WIDTHS = {
    "BOOLEAN": 1,
    "INT32": 4,
    "INT64": 8,
    "INT96": 8,
    "FLOAT": 4,
    "DOUBLE": 8,
    "BYTE_ARRAY": 4,
}  # bytes in memory


def expression_of(filters: Any) -> Any:
    """Convert filters to an expression of pyarrow; None if there are none.

    Raises:
        ConfigurationError: the filters do not have pyarrow's format.
    """
    if filters is None:
        return None
    import pyarrow.compute as pc  # noqa: PLC0415  # only needed for filters

    if isinstance(filters, pc.Expression):
        return filters
    try:
        return arrow().filters_to_expression(filters)
    except Exception as error:
        raise ConfigurationError(
            f"filters= does not have pyarrow's format: {type(error).__name__}: {error}.\n"
            'Pass a list of conditions that must all hold, such as [("year", ">=", 2020)]; a list of such lists, of '
            "which one must hold; or an expression of pyarrow."
        ) from error


def kept_groups(footer: Footer, expression: Any) -> list[int]:
    """Return the row groups of a file that have rows and, according to their statistics, may match the filters.

    Raises:
        ConfigurationError: the filters do not fit the columns of the file.
    """
    metadata = footer.metadata
    groups = range(metadata.num_row_groups) if expression is None else _pruned(footer, expression)
    return [number for number in groups if metadata.row_group(number).num_rows]


def _pruned(footer: Footer, expression: Any) -> list[int]:
    import pyarrow as pa  # noqa: PLC0415  # as above
    import pyarrow.dataset as ds  # noqa: PLC0415  # the same

    try:
        fragment = ds.ParquetFileFormat().make_fragment(pa.BufferReader(footer.content))
        parts = fragment.split_by_row_group(filter=expression)
        return sorted(group.id for part in parts for group in part.row_groups)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"filters= does not fit the columns of {footer.file.name}: {error}\n"
            "Use columns of the file, and values of their types."
        ) from error


def memory_of(metadata: Any, group: int, columns: Sequence[str] | None) -> int:
    """Estimate the size of a row group's columns in memory, in bytes."""
    found = metadata.row_group(group)
    parts = [found.column(number) for number in leaves_of(metadata, columns)]
    return sum(max(one.total_uncompressed_size, one.num_values * _WIDTHS.get(one.physical_type, 1)) for one in parts)
