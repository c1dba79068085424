"""Files in FFCV's format for the tests, written once and read by all processes of a run."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import BytesField, FloatField, IntField, JSONField, NDArrayField, RGBImageField, TorchTensorField
from ffcv.writer import DatasetWriter

VARIABLE = "RESUMABLE_FFCV_TESTS"
SAMPLES = 70
SIZE = 24
BIG = 600_000  # bytes: three samples on each page of the smallest size


def folder() -> Path:
    """Return the folder of this run, which ends with the process that made it."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = tempfile.mkdtemp(prefix="resumable-ffcv-")
        atexit.register(shutil.rmtree, os.environ[VARIABLE], ignore_errors=True)
    return Path(os.environ[VARIABLE])


def image(index: int, height: int = SIZE, width: int = SIZE) -> np.ndarray[Any, Any]:
    """Draw a smooth image, another one for each index."""
    rows, columns = np.mgrid[:height, :width]
    channels = [rows * (3 + index % 5) + index, columns * (2 + index % 7), rows + columns + 3 * index]
    return (np.stack(channels, axis=-1) % 256).astype(np.uint8)


class Samples:
    """Samples with a part for each field; `change` is added to each image."""

    def __init__(self, fields: dict[str, Any], count: int, change: int) -> None:
        self._fields, self._count, self._change = list(fields), count, change

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(getattr(self, f"_{name}")(index) for name in self._fields)

    def _raw(self, index: int) -> Any:
        return image(index + self._change)

    _jpg = _raw

    def _odd(self, index: int) -> Any:
        return image(index, SIZE + index % 9, SIZE + index % 4)

    def _label(self, index: int) -> int:
        return index

    def _value(self, index: int) -> float:
        return index / 7

    def _array(self, index: int) -> Any:
        return np.full((2, 3), index, np.int16)

    def _tensor(self, index: int) -> Any:
        import torch  # noqa: PLC0415  # only here

        return torch.full((4,), float(index))

    def _text(self, index: int) -> Any:
        return np.arange(1 + index % 13, dtype=np.uint8) + 1

    def _big(self, index: int) -> Any:
        return np.full(BIG, index, np.uint8)

    def _json(self, index: int) -> dict[str, Any]:
        return {"index": int(index), "more": "x" * int(index % 11)}


def fields() -> dict[str, Any]:
    import torch  # noqa: PLC0415  # only here

    return {
        "raw": RGBImageField(write_mode="raw"),
        "jpg": RGBImageField(write_mode="jpg", jpeg_quality=95),
        "odd": RGBImageField(write_mode="jpg"),
        "label": IntField(),
        "value": FloatField(),
        "array": NDArrayField(np.dtype(np.int16), (2, 3)),
        "tensor": TorchTensorField(torch.float32, (4,)),
        "text": BytesField(),
        "json": JSONField(),
        "big": NDArrayField(np.dtype(np.uint8), (BIG,)),
    }


def beton(
    name: str = "plain", *, only: tuple[str, ...] = ("raw", "label"), count: int = SAMPLES, change: int = 0
) -> str:
    """Write a file once, and return its path."""
    path = folder() / f"{name}.beton"
    if not path.exists():
        draft = folder() / f"{name}.{os.getpid()}"
        # FFCV's writer forks, and waits forever where that fails, as it may beside the threads of other tests.
        writer = get_context("spawn").Process(target=write, args=(str(draft), only, count, change))
        writer.start()
        writer.join()
        assert writer.exitcode == 0
        draft.replace(path)
    return str(path)


def write(path: str, only: tuple[str, ...], count: int, change: int) -> None:
    """Write a file, in a process of its own."""
    chosen = {field: kind for field, kind in fields().items() if field in only}
    writer = DatasetWriter(path, chosen, page_size=1 << 21, num_workers=1)
    writer.from_indexed_dataset(Samples(chosen, count, change), chunksize=10_000)
