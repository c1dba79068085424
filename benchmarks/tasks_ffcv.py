"""Epochs of an FFCV Loader, plain and wrapped, and the time to its first batch."""

from __future__ import annotations

import gc
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import Cutout, RandomHorizontalFlip, RandomTranslate, Squeeze, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter

import resumable

__all__ = ["Epochs", "loader"]


def loader(mode: str, workers: int, images: int, size: int) -> Loader:
    """Return a Loader with random operations, over a file that is written once."""
    pipelines = {
        "image": [
            RandomResizedCropRGBImageDecoder((size, size)), RandomHorizontalFlip(), Cutout(size // 4),
            RandomTranslate(4), ToTensor(), ToTorchImage(),
        ],
        "label": [IntDecoder(), ToTensor(), Squeeze()],
    }  # fmt: skip
    return Loader(_write(mode, images, size), 50, workers, order=OrderOption.RANDOM, pipelines=pipelines)


class Epochs:
    """Reads epochs of one Loader, plain and wrapped.

    Args:
        mode: "raw" or "jpg".
        workers: threads of the Loader.
        images: in the file.
        size: of an image, in pixels.
    """

    def __init__(self, *, mode: str, workers: int, images: int, size: int) -> None:
        self._plain = loader(mode, workers, images, size)
        self._wrapped = resumable.wrap(self._plain)

    def first(self, *, wrapped: bool) -> float:
        """Return the seconds to the first batch, including compilation."""
        begin = time.perf_counter()
        for _ in self._wrapped if wrapped else self._plain:
            break
        return time.perf_counter() - begin

    def epoch(self, *, wrapped: bool) -> dict[str, float]:
        """Read an epoch; return its seconds: wall-clock time, and processor time of all threads."""
        gc.collect()
        loader: Any = self._wrapped if wrapped else self._plain
        if wrapped:
            loader.seek(epoch=loader.epoch)
        wall, processor = time.perf_counter(), time.process_time()
        for _ in loader:
            pass
        return {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor}


def _write(mode: str, images: int, size: int) -> str:
    path = Path(tempfile.gettempdir(), f"resumable-benchmark-{mode}-{images}-{size}.beton")
    if not path.exists():
        fields = {"image": RGBImageField(write_mode=mode, jpeg_quality=90), "label": IntField()}
        DatasetWriter(str(path), fields, num_workers=1).from_indexed_dataset(_Images(images, size))
    return str(path)


class _Images:
    def __init__(self, count: int, size: int) -> None:
        self._count, self._size = count, size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        rows, columns = np.mgrid[: self._size, : self._size]
        image = np.stack([rows * 3 + index, columns * 2, rows + columns], axis=-1) % 256
        return image.astype(np.uint8), index
