"""The digits as files that are read by index: WebDataset shards, and a mixture of WebDataset and Parquet files."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from torch.utils.data import DataLoader

import resumable

from .augmentation import augment
from .digits import BATCH_SIZE
from .prepared import prepared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from .digits import Digits

__all__ = ["make_mixture", "make_tars", "write_files"]

_FILES, _ROW_GROUP = 4, 50


def make_tars(digits: Digits) -> resumable.Loader[Any]:
    """Wrap a `DataLoader` with two workers over shards, shuffled in blocks."""
    tars: Any = _tars(digits)  # torch's types require a Dataset, but its DataLoader accepts anything with an index
    return resumable.wrap(DataLoader(tars, batch_size=BATCH_SIZE, num_workers=2), shuffle="blocks")


def make_mixture(digits: Digits) -> resumable.Loader[Any]:
    """Wrap a `DataLoader` over two sources, which make up two thirds and one third of every batch."""
    sources = {"tars": _tars(digits), "parquet": _parquet(digits)}
    mixture: Any = resumable.mix(sources, weights={"tars": 2, "parquet": 1})
    return resumable.wrap(DataLoader(mixture, batch_size=BATCH_SIZE))


def _tars(digits: Digits) -> resumable.Tars:
    folder = write_files(digits)
    return resumable.Tars(f"{folder}/{{0..{_FILES - 1}}}.tar", transform=_of_shard, index=False)


def _parquet(digits: Digits) -> resumable.Parquet:
    return resumable.Parquet(f"{write_files(digits)}/*.parquet", transform=_of_row)


def _of_shard(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
    return augment(sample["png"][..., 0] / np.float32(255)), sample["cls"]


def _of_row(row: dict[str, Any]) -> tuple[torch.Tensor, int]:
    return augment(row["data"].reshape(8, 8)), row["label"]


def write_files(digits: Digits) -> Path:
    """Write shards and Parquet files of the digits, unless they exist; return their folder."""
    name = hashlib.blake2b(digits.images.tobytes(), digest_size=8).hexdigest()
    folder = prepared(f"formats-{name}")
    if not folder.exists():
        part = Path(tempfile.mkdtemp(prefix=folder.name, dir=folder.parent))
        for number in range(_FILES):
            some = range(number, len(digits.labels), _FILES)
            with tarfile.open(part / f"{number}.tar", "w") as tar:
                _add_all(tar, digits, some)
            rows = {"data": [digits.images[i].ravel() for i in some], "label": digits.labels[list(some)]}
            pq.write_table(pa.table(rows), part / f"{number}.parquet", row_group_size=_ROW_GROUP)
        try:
            part.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(part)
    return folder


def _add_all(tar: tarfile.TarFile, digits: Digits, some: Iterable[int]) -> None:
    for index in some:
        image = Image.fromarray((digits.images[index] * 255).astype(np.uint8))
        _add(tar, f"{index:04}.png", partial(image.save, format="PNG"))
        _add(tar, f"{index:04}.cls", partial(_write_label, digits.labels[index]))


def _write_label(label: np.int64, file: io.BytesIO) -> None:
    file.write(b"%d" % label)


def _add(tar: tarfile.TarFile, name: str, write: Callable[[io.BytesIO], object]) -> None:
    file = io.BytesIO()
    write(file)
    member = tarfile.TarInfo(name)
    member.size = file.tell()
    file.seek(0)
    tar.addfile(member, file)
