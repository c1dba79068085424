"""Rows of Parquet files, row group by row group in random order, stopped in the middle of an epoch and resumed.

Run it with `python examples/parquet_blocks.py`; it needs pyarrow and torch.
"""

from __future__ import annotations

import json
import logging
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.data import DataLoader

import resumable

logging.getLogger("resumable").setLevel("ERROR")  # the same stream is read twice on purpose, to compare


def write(folder: Path) -> None:
    """Write three files of 400 rows, in row groups of 25."""
    for part in range(3):
        numbers = range(400 * part, 400 * part + 400)
        rows = {"id": list(numbers), "tokens": [[number % 7] * 16 for number in numbers]}
        pq.write_table(pa.table(rows), folder / f"train-{part}.parquet", row_group_size=25)


def make(folder: Path) -> resumable.Loader[Any]:
    """Return a loader with two workers."""
    rows: Any = resumable.Parquet(folder / "train-{0..2}.parquet")
    return resumable.wrap(DataLoader(rows, batch_size=10, num_workers=2), shuffle="blocks", seed=0)


def main() -> None:
    """Compare a stopped run with an uninterrupted one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        whole = [batch["id"].tolist() for batch in make(folder).steps(180)]
        loader = make(folder)
        before = [batch["id"].tolist() for batch in loader.steps(77)]
        state = json.dumps(loader.state_dict())

        resumed = make(folder)
        resumed.load_state_dict(json.loads(state))
        after = [batch["id"].tolist() for batch in resumed.steps(180)]
        if before + after != whole:
            raise SystemExit("the resumed order differs from the uninterrupted run")
        place = resumable.Parquet(folder / "train-*.parquet").locate([after[0][0]])[0]
        where = f"row {place.row} of row group {place.row_group} of {Path(place.file).name}"
        print(f"stopped after {len(before)} batches and resumed at {where}: the order is identical")


if __name__ == "__main__":
    main()
