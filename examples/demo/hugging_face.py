"""The digits in Hugging Face's `datasets`: a table that is augmented when it is read, and a stream of Parquet files."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
from torch.utils.data import DataLoader

import resumable

from .augmentation import augment
from .digits import BATCH_SIZE
from .prepared import prepared

if TYPE_CHECKING:
    import torch

    from .digits import Digits

__all__ = ["make_stream", "make_table", "write_parquet"]

_FILES = 4


def make_table(digits: Digits) -> resumable.Loader[Any]:
    """Wrap a `DataLoader` over a `Dataset` with a transform, which is read in batches."""
    rows = _rows(digits).with_transform(_augmented)
    return resumable.wrap(DataLoader(rows, batch_size=BATCH_SIZE, shuffle=True), randomness="batch")


def make_stream(digits: Digits) -> resumable.Loader[Any]:
    """Wrap a `DataLoader` with two workers over an `IterableDataset` that streams files, and augments with `map`."""
    name = hashlib.blake2b(digits.images.tobytes(), digest_size=8).hexdigest()
    folder = write_parquet(digits, prepared(f"parquet-{name}"))
    files = [str(path) for path in sorted(folder.iterdir())]
    stream = datasets.load_dataset("parquet", data_files=files, streaming=True, split="train")
    return resumable.wrap(DataLoader(stream.map(_augmented_row), batch_size=BATCH_SIZE, num_workers=2))


def write_parquet(digits: Digits, folder: Path) -> Path:
    """Write a folder of Parquet files, unless it exists; return it."""
    if not folder.exists():
        part = Path(tempfile.mkdtemp(prefix=folder.name, dir=folder.parent))
        datasets.disable_progress_bars()
        for number in range(_FILES):
            _rows(digits).shard(_FILES, number).to_parquet(str(part / f"{number}.parquet"))
        try:
            part.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(part)
    return folder


def _rows(digits: Digits) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"data": digits.images.reshape(len(digits.labels), -1), "label": digits.labels})


def _augmented(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {"data": [_augmented_row({"data": row})["data"] for row in rows["data"]], "label": rows["label"]}


def _augmented_row(row: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {"data": augment(np.asarray(row["data"], np.float32).reshape(8, 8))}
