"""Parquet: rows of Parquet files, whose row groups are read as they are needed."""

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


# Row groups: which are kept, how many rows they have, and how much of memory they take.

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}  # in memory


def expression_of(filters: Any) -> Any:
    """Return filters in pyarrow's form as an expression of pyarrow; None where there are none.

    Raises:
        ConfigurationError: they are of another form.
    """
    if filters is None:
        return None
    import pyarrow.compute as pc  # noqa: PLC0415  # for those who filter

    if isinstance(filters, pc.Expression):
        return filters
    try:
        return arrow().filters_to_expression(filters)
    except Exception as error:
        raise ConfigurationError(
            f"filters= has not pyarrow's form: {type(error).__name__}: {error}.\n"
            "Which row groups are meant could not be known. Give a list of (column, operator, value), all of which "
            'have to hold, such as [("year", ">=", 2020)]; a list of such lists, one of which has to; or an expression '
            "of pyarrow."
        ) from error


def kept_groups(footer: Footer, expression: Any) -> list[int]:
    """Return the row groups of a file that have rows, without those whose statistics say that none of them fits.

    Raises:
        ConfigurationError: the filters do not belong to the columns of the file.
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
            "Which row groups are meant could not be known. Name columns of the file, with values of their types."
        ) from error


def memory_of(metadata: Any, group: int, columns: Sequence[str] | None) -> int:
    """Estimate how many bytes the columns of a row group take in memory."""
    found = metadata.row_group(group)
    parts = [found.column(number) for number in leaves_of(metadata, columns)]
    return sum(max(one.total_uncompressed_size, one.num_values * _WIDTHS.get(one.physical_type, 1)) for one in parts)


_CACHE = 1 << 28
_SHORT = 100  # characters of what a state says


class Row(NamedTuple):
    """Where a sample is: its file, the number of the row group in that, and its row in the row group; from 0."""

    file: str
    row_group: int
    row: int

    def __str__(self) -> str:
        return f"row {self.row} of row group {self.row_group} of {self.file}"


class Parquet:
    """Rows of Parquet files as samples by index; for `wrap`, a `DataLoader`, `resumable.mix`, or by itself.

    A sample is a dict from the names of the columns to values of Python, as `pyarrow.Table.to_pylist` gives them:
    `int`, `float`, `str`, `bytes`, `datetime`, a list, a dict for a struct, None where a value is missing. A list of
    numbers is a NumPy array of its type, unless some of them are missing.

    A file is read by row groups, each as a whole, and each process keeps those that it used last. `sizes` are their
    rows, so that `shuffle="blocks"` mixes the rows of as many of them as are kept at once.

    Args:
        files: path or URL of a file, a pattern with `{000..099}`, `{a,b}`, `*`, `?` or `[...]`, or a list of these.
            Files come in the order of the list, those of a pattern by their names. URLs are all that fsspec knows.
        columns: names of those to read; a part of a nested one by its path, such as "point.x". None: all.
        filters: as in pyarrow: a list of `(column, operator, value)` that all hold, a list of such lists, or an
            expression. Left out is each row group whose statistics show that no row of it fits. Of the others all rows
            are kept, those that do not fit, too.
        transform: makes of each row what is returned.
        cache_bytes: how much each process keeps of decoded row groups, in bytes; the last one is always kept.
        storage_options: for the file system of URLs, as fsspec takes them.

    Raises:
        ConfigurationError: there is no such file or column; a file is cut, damaged or no Parquet file; the types differ
            between files; or no row is left.
        MissingDependencyError: pyarrow, braceexpand or a file system is not installed.
        DataError: while reading, if a file was written again, cut or removed since, or cannot be decoded.
    """

    def __init__(  # noqa: PLR0913  # what a source of files depends on; each has a default
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
            why = "" if filters is None else f" that may fit filters={filters!r}"
            raise ConfigurationError(
                f"{_named(self._opened)} and its {self._stored} row groups have no row{why}.\n"
                "There would be no sample. Look after what wrote the files, and the filters."
            )

    # ------------------------------------------------------------------ what there is

    @property
    def files(self) -> list[str]:
        """Paths or URLs of the files, in their order."""
        return [file.name for file in self._opened]

    @property
    def sizes(self) -> IntArray:
        """Rows of each row group that is kept, as `shuffle="blocks"` takes them; shape `(row groups,)`."""
        return np.array([group.rows for group in self._groups], np.int64)

    @property
    def resumable_blocks(self) -> dict[str, Any]:
        """How `shuffle="blocks"` shuffles: whole row groups, as many per window as two windows have room for."""
        return {"block": None, "window": max(self._most // (2 * self._mean), 1)}

    @property
    def wider_blocks(self) -> str:
        """How `shuffle="blocks"` gets a window of `{window}` row groups, for its warning."""
        return (
            f"Give Parquet(..., cache_bytes={2 * self._mean} * {{window}}) or more, in each process that reads; or "
            "write the files in smaller row groups, which takes no more memory."
        )

    def locate(self, indices: Iterable[int]) -> list[Row]:
        """Return where samples are, as those of `Loader.sample_indices`; none is read."""
        found = [self._find(index) for index in indices]
        return [Row(self._groups[group].file.name, self._groups[group].number, row) for group, row in found]

    @cached_property
    def resumable_identity(self) -> dict[str, str]:
        """What a state knows the data by: names of files, rows, columns with their types, and a digest of footers."""
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
        """Return what tells these samples from others: names, rows, types of columns, and a digest of the footers."""
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
        """Return several samples; those of one row group are taken from it at once."""
        return list(map(self._made, self._rows([operator.index(index) for index in indices])))

    def resumable_prefetch(self, indices: Sequence[int], upcoming: Callable[[], Any]) -> None:
        """Take rows from their row groups that will be asked for one by one, and read remote row groups ahead."""
        numbers = [operator.index(index) for index in indices]
        self._ready = dict(zip(numbers, self._rows(numbers, self._ahead(upcoming)), strict=True))

    def _ahead(self, upcoming: Callable[[], Any]) -> list[int]:
        blocks = upcoming() if self._remote else None
        return [] if blocks is None else list(dict.fromkeys(self._find(first)[0] for first in blocks.soon[:, 0]))

    def _made(self, row: dict[str, Any]) -> Any:
        return row if self._transform is None else self._transform(row)

    def _find(self, index: int) -> tuple[int, int]:
        """Return the place of a sample's row group in the list, and its row in that."""
        number = operator.index(index)
        if not 0 <= number < len(self):
            raise IndexError(f"there are the samples 0..{len(self) - 1}, so there is no sample {number}")
        group = bisect_right(self._ends, number)
        return group, number - (self._ends[group - 1] if group else 0)

    def _rows(self, indices: Sequence[int], ahead: Sequence[int] = ()) -> list[dict[str, Any]]:
        """Return rows, in the order of the indices."""
        found = [self._find(index) for index in indices]
        places: dict[int, list[int]] = {}
        for place, (group, _) in enumerate(found):
            places.setdefault(group, []).append(place)
        rows: list[Any] = [None] * len(indices)
        for group, table in self._tables(list(places), ahead):
            some = places.get(group, ())
            values = values_of(table, [found[place][1] for place in some], list(self._types)) if some else ()
            for place, value in zip(some, values, strict=True):
                rows[place] = value
        return rows

    def _tables(self, groups: Sequence[int], ahead: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yield row groups, first those that are kept; then those that are not, with others to read ahead."""
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
        """Yield row groups that are read at the same time: one by one of local files, else as there is room for."""
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
