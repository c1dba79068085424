"""FFCV in a hand-written loop that stops, and resumes with the same pixels: python examples/ffcv_hand_loop.py."""

from __future__ import annotations

import hashlib
import io
import tempfile
from contextlib import redirect_stderr
from typing import TYPE_CHECKING

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor
from ffcv.writer import DatasetWriter

import resumable

if TYPE_CHECKING:
    import torch

images = [(np.random.default_rng(i).integers(0, 255, (32, 32, 3), np.uint8), i % 10) for i in range(60)]


def make_loader(path: str, workers: int) -> resumable.Loader:
    """Wrap a Loader with random operations."""
    pipelines = {
        "image": [RandomResizedCropRGBImageDecoder((16, 16)), RandomHorizontalFlip(), ToTensor()],
        "label": [IntDecoder(), ToTensor(), Squeeze()],
    }
    loader = Loader(path, batch_size=10, num_workers=workers, order=OrderOption.RANDOM, pipelines=pipelines)
    return resumable.wrap(loader, seed=0)


def name(image: torch.Tensor) -> str:
    """Return a short digest of the pixels of a batch."""
    return hashlib.sha256(image.numpy().tobytes()).hexdigest()[:6]


with tempfile.TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):  # FFCV's progress bar
    path = f"{folder}/train.beton"
    DatasetWriter(path, {"image": RGBImageField(), "label": IntField()}, num_workers=1).from_indexed_dataset(images)
    whole = [name(image) for image, _ in make_loader(path, workers=1)]
    print("baseline:", *whole)

    loader, seen = make_loader(path, workers=1), []
    for image, _ in loader:
        seen.append(name(image))
        state = loader.state_dict()
        if len(seen) == 3:
            break
    resumed = make_loader(path, workers=2)
    resumed.load_state_dict(state)
    seen += [name(image) for image, _ in resumed]
    print("resumed: ", *seen)
    print("The same pixels, with a different number of workers:", seen == whole)
