"""Which columns are read, of which types; and their values as Python and NumPy have them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resumable.sources._parquet.footer import Footer

__all__ = ["check_same_types", "chosen_columns", "leaves_of", "types_of", "values_of"]


def chosen_columns(columns: Any, footer: Footer) -> list[str] | None:
    """Return the columns to be read, None for all.

    Args:
        columns: names, or paths of parts of nested ones, such as "point.x"; None for all.
        footer: of a file that has them.

    Raises:
        ConfigurationError: there is no such column, none is chosen, or two have one name.
    """
    own = footer.metadata.schema.to_arrow_schema().names
    twice = [name for name, count in Counter(own).items() if count > 1]
    if twice:
        raise ConfigurationError(
            f"{footer.file.name} has several columns with the name {twice[0]!r}.\n"
            "A row is a dict, so one of them would be lost. Write the file with names of their own."
        )
    if columns is None:
        return None
    chosen = [columns] if isinstance(columns, str) else list(columns)
    known = _paths(footer)
    for name in chosen:
        if name not in known:
            raise ConfigurationError(
                f"{footer.file.name} has no column {name!r}.\n  there are: {', '.join(own)}\n"
                "It would be missing in every row. Give columns of the file; a part of a nested one is named by its "
                "path, such as point.x."
            )
    if not chosen:
        raise ConfigurationError(
            "columns=[] was given, so rows would be empty.\nGive names of columns, or None for all of them."
        )
    return list(dict.fromkeys(chosen))


def _paths(footer: Footer) -> set[str]:
    """Return the names of all columns, and the paths to all parts of nested ones."""
    schema, found = footer.metadata.schema, set[str]()
    for number in range(len(schema)):
        path = schema.column(number).path
        while path:
            found.add(path)
            path = path.rpartition(".")[0]
    return found


def leaves_of(metadata: Any, columns: Sequence[str] | None) -> list[int]:
    """Return the numbers of the columns as they are stored, without nesting."""
    paths = [metadata.schema.column(number).path for number in range(len(metadata.schema))]
    if columns is None:
        return list(range(len(paths)))
    return [number for number, path in enumerate(paths) if any(f"{path}.".startswith(f"{name}.") for name in columns)]


def types_of(footer: Footer, columns: Sequence[str] | None) -> dict[str, str]:
    """Return the types of the columns that are read, by name; of nested ones with the parts that are."""
    schema = footer.metadata.schema.to_arrow_schema()
    if columns is None:
        return {field.name: str(field.type) for field in schema}
    tops = dict.fromkeys(name if name in schema.names else _top(name, schema.names) for name in columns)
    return {top: str(schema.field(top).type) if top in columns else _parts(footer, top, columns) for top in tops}


def _parts(footer: Footer, top: str, columns: Sequence[str]) -> str:
    """Return the types of the parts of a nested column that are read."""
    schema = footer.metadata.schema
    leaves = [schema.column(number) for number in leaves_of(footer.metadata, columns)]
    own = [leaf for leaf in leaves if leaf.path.startswith(f"{top}.")]
    return ", ".join(f"{leaf.path} {leaf.physical_type} {leaf.logical_type}" for leaf in own)


def _top(path: str, names: Iterable[str]) -> str:
    return next(name for name in sorted(names, key=len, reverse=True) if path.startswith(f"{name}."))


def check_same_types(footers: Sequence[Footer], columns: Sequence[str] | None) -> dict[str, str]:
    """Return the types of the columns that are read, the same in all files.

    Raises:
        ConfigurationError: a file has a column that another one has not, or one of another type.
    """
    first, *others = footers
    types = types_of(first, columns)
    for other in others:
        chosen_columns(columns, other)
        own = types_of(other, columns)
        for name in {**types, **own}:
            if types.get(name) != own.get(name):
                raise ConfigurationError(
                    f"the column {name!r} is not the same in all files.\n"
                    f"  {first.file.name}: {types.get(name, 'no such column')}\n"
                    f"  {other.file.name}: {own.get(name, 'no such column')}\n"
                    "Samples would change their form from file to file. Give columns= that all files have, of one "
                    "type, or write the files again; different ones are sources of their own in resumable.mix."
                )
    return types


def values_of(table: Any, rows: Sequence[int], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return some rows of a table as dicts of Python's values, as pyarrow has them; lists of numbers are arrays.

    Args:
        table: with these columns.
        rows: which.
        names: of the columns, in the order of the dicts.
    """
    taken = table.take(np.asarray(rows, np.int64)) if len(rows) != 1 else table.slice(rows[0], 1)
    columns = [_column(taken.column(name)) for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _column(column: Any) -> list[Any]:
    import pyarrow as pa  # noqa: PLC0415  # for those who read Parquet

    kind, types = column.type, pa.types
    if isinstance(kind, pa.FixedShapeTensorType):
        return [_tensor(one) for one in column]
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    numbers = lists and _is_number(kind.value_type, types)
    return [_numbers(one.values) for one in column] if numbers else column.to_pylist()


def _is_number(kind: Any, types: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _tensor(scalar: Any) -> Any:
    return None if not scalar.is_valid else scalar.to_numpy().copy()


def _numbers(values: Any) -> Any:
    """Return an array that can be written to; a list where some are missing, and None where all of it is."""
    if values is None:
        return None
    return values.to_pylist() if values.null_count else np.array(values.to_numpy(zero_copy_only=False))
