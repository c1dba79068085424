"""Row groups: which are kept, how many rows they have, and how much of memory they take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable.errors import ConfigurationError
from resumable.sources._parquet.columns import leaves_of
from resumable.sources._parquet.footer import arrow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable.sources._parquet.footer import Footer

__all__ = ["expression_of", "kept_groups", "memory_of"]

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
