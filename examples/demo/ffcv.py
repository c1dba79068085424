"""The digits as an FFCV file, decoded and augmented by FFCV's compiled operations."""

from __future__ import annotations

import hashlib
import io
import os
from contextlib import redirect_stderr
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.pipeline.operation import Operation
from ffcv.transforms import Cutout, Squeeze, ToTensor
from ffcv.writer import DatasetWriter

import resumable

from .digits import BATCH_SIZE
from .prepared import prepared

if TYPE_CHECKING:
    from pathlib import Path

    from .digits import Digits

__all__ = ["make_ffcv", "write_beton"]


def make_ffcv(digits: Digits) -> resumable.Loader:
    """Wrap a Loader with two workers and random operations."""
    name = hashlib.blake2b(digits.images.tobytes(), digest_size=8).hexdigest()
    path = write_beton(digits, prepared(f"{name}.beton"))
    crop = RandomResizedCropRGBImageDecoder((8, 8), scale=(0.7, 1.0))
    pipelines = {"image": [crop, Cutout(2), ToTensor(), _Grey()], "label": [IntDecoder(), ToTensor(), Squeeze()]}
    loader = Loader(
        str(path), BATCH_SIZE, num_workers=2, order=OrderOption.RANDOM, pipelines=pipelines, drop_last=False
    )
    return resumable.wrap(loader)


def write_beton(digits: Digits, path: Path) -> Path:
    """Write the file, unless it exists."""
    if not path.exists():
        draft = path.with_suffix(f".{os.getpid()}")
        # FFCV's writer forks, and waits forever if that fails, as it may with the threads of other frameworks.
        writer = get_context("spawn").Process(target=_write, args=(digits, draft))
        writer.start()
        writer.join()
        draft.replace(path)
    return path


def _write(digits: Digits, path: Path) -> None:
    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=100), "label": IntField()}
    with redirect_stderr(io.StringIO()):  # its progress bar
        DatasetWriter(str(path), fields, num_workers=1).from_indexed_dataset(_Samples(digits))


class _Samples:
    def __init__(self, digits: Digits) -> None:
        self._digits = digits

    def __len__(self) -> int:
        return len(self._digits.labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        image = (self._digits.images[index] * 255).astype(np.uint8)
        return np.stack([image] * 3, axis=-1), int(self._digits.labels[index])


class _Grey(Operation):  # type: ignore[misc]  # FFCV ships no types
    """One channel of floating-point numbers in 0..1, as the model expects."""

    def generate_code(self) -> Any:
        return lambda images, _: images[..., 0][:, None].float() / 255

    def declare_state_and_memory(self, previous_state: Any) -> Any:
        return previous_state, None
