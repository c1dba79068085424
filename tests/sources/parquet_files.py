"""Parquet files for tests, with plain and nested columns."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ROWS = (37, 50, 1)
GROUP = 8
POINT = pa.struct({"x": pa.int64(), "name": pa.struct({"de": pa.string()})})
BOX = pa.struct({"at": pa.int64(), "of": pa.string()})


def table(first: int, rows: int) -> pa.Table:
    """Return rows that tell themselves, from number `first` on."""
    numbers = range(first, first + rows)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "half": pa.array([number / 2 for number in numbers], pa.float32()),
            "text": pa.array([None if number % 7 == 3 else f"text {number}" for number in numbers], pa.string()),
            "tokens": pa.array([list(range(number % 5)) for number in numbers], pa.list_(pa.int32())),
            "pair": pa.array([[number, number + 1] for number in numbers], pa.list_(pa.float32(), 2)),
            "gaps": pa.array([[number, None] if number % 2 else [number] for number in numbers], pa.list_(pa.int64())),
            "point": pa.array([{"x": number, "name": {"de": str(number)}} for number in numbers], POINT),
            "boxes": pa.array([[{"at": number, "of": "a"}] * (number % 3) for number in numbers], pa.list_(BOX)),
            "day": pa.array([dt.date(2024, 1, 1) + dt.timedelta(days=number) for number in numbers], pa.date32()),
            "raw": pa.array([b"\x00\xff" * (number % 4) for number in numbers], pa.binary()),
        }
    )


def write(folder: Path, rows: Sequence[int] = ROWS, **options: Any) -> list[Path]:
    """Write files of so many rows each, in row groups of 8."""
    paths, first = [], 0
    for number, count in enumerate(rows):
        paths.append(folder / f"part-{number:03d}.parquet")
        pq.write_table(table(first, count), paths[-1], row_group_size=GROUP, **options)
        first += count
    return paths


def plain(sample: Any) -> Any:
    """Return a sample with lists in place of arrays, as pyarrow gives it."""
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in sample.items()}
