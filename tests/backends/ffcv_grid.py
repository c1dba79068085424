"""One Loader with every field, decoder and operation of FFCV, and a run of it that can be killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import ffcv_data
import numpy as np
import torch
from ffcv.fields import decoders
from ffcv.loader import Loader, OrderOption
from ffcv.pipeline.pipeline_spec import PipelineSpec
from ffcv.transforms import (
    Convert,
    Cutout,
    ImageMixup,
    LabelMixup,
    MixupToOneHot,
    NormalizeImage,
    Poison,
    RandomBrightness,
    RandomContrast,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomSaturation,
    RandomTranslate,
    ReplaceLabel,
    Squeeze,
    ToDevice,
    ToTensor,
    ToTorchImage,
    View,
)

import resumable
from resumable.testing import digest

EVERY = ("raw", "jpg", "odd", "label", "value", "array", "tensor", "text", "json")
PLAIN = ("center", "simple", "normal", "half", "poisoned", "replaced", "label", "value", "array", "tensor", "viewed")
PADDED = ("text", "json")
RANDOM = ("crop_raw", "crop_jpg", "crop_odd", "light", "geometry", "resized")
BATCHED = ("mixed", "shares", "one_hot", "module")


def path() -> str:
    return ffcv_data.beton("every", only=EVERY)


def plain_pipelines() -> dict[str, Any]:
    """Make pipelines without randomness."""
    simple, label = decoders.SimpleRGBImageDecoder, decoders.IntDecoder
    mean, mask = np.array([1.0, 2.0, 3.0]), np.full((24, 24, 3), 200)
    pipelines = {
        "center": ("odd", decoders.CenterCropRGBImageDecoder((12, 12), ratio=0.8), [ToTensor(), ToTorchImage()]),
        "simple": ("raw", simple(), [ToTensor(), ToDevice(torch.device("cpu")), Convert(torch.int16)]),
        "normal": (
            "jpg",
            simple(),
            [NormalizeImage(mean, mean, np.float32), ToTensor(), ToTorchImage(channels_last=False)],
        ),
        "half": ("raw", simple(), [NormalizeImage(mean, mean, np.float16), ToTensor(), ToTorchImage()]),
        "poisoned": ("raw", simple(), [Poison(mask, np.full((24, 24), 0.5), [1, 5, 9]), ToTensor()]),
        "replaced": ("label", label(), [ReplaceLabel([2, 4], 77), ToTensor(), Squeeze()]),
        "viewed": ("value", None, [ToTensor(), View(torch.int64)]),
        **{name: (name, None, [ToTensor()]) for name in ("label", "value", "array", "tensor", "text", "json")},
    }
    return {name: specify(*pipeline) for name, pipeline in pipelines.items()}


def random_pipelines() -> dict[str, Any]:
    """Make pipelines that are random per sample."""
    crop, simple = decoders.RandomResizedCropRGBImageDecoder, decoders.SimpleRGBImageDecoder
    light = [RandomBrightness(0.5), RandomContrast(0.5), RandomSaturation(0.5), ToTensor()]
    geometry = [RandomHorizontalFlip(), Cutout(5), RandomTranslate(3), ToTensor(), ToTorchImage()]
    pipelines = {
        "crop_raw": ("raw", crop((12, 12)), [ToTensor()]),
        "crop_jpg": ("jpg", crop((12, 12), scale=(0.3, 0.9)), [ToTensor()]),
        "crop_odd": ("odd", crop((12, 12)), [ToTensor()]),
        "light": ("raw", simple(), light),
        "geometry": ("raw", simple(), geometry),
        "resized": ("raw", simple(), [RandomResizedCrop((0.2, 1.0), (0.75, 4 / 3), 12), ToTensor()]),
    }
    return {name: specify(*pipeline) for name, pipeline in pipelines.items()}


def batched_pipelines() -> dict[str, Any]:
    """Make pipelines that are random per batch."""
    simple, label, mixup = decoders.SimpleRGBImageDecoder, decoders.IntDecoder, {"alpha": 0.7, "same_lambda": False}
    pipelines = {
        "mixed": ("raw", simple(), [ImageMixup(**mixup), ToTensor()]),
        "shares": ("label", label(), [LabelMixup(**mixup), ToTensor()]),
        "one_hot": ("label", label(), [LabelMixup(**mixup), ToTensor(), MixupToOneHot(100)]),
        "module": ("value", None, [ToTensor(), Convert(torch.float32), torch.nn.Dropout(0.5)]),
    }
    return {name: specify(*pipeline) for name, pipeline in pipelines.items()}


def specify(field: str, decoder: Any, transforms: list[Any]) -> PipelineSpec:
    return PipelineSpec(field, decoder=decoder, transforms=transforms)


def make_loader(pipelines: dict[str, Any], **options: Any) -> Loader:
    given: dict[str, Any] = {"batch_size": 10, "num_workers": 1, "order": OrderOption.RANDOM}
    unused = {field: None for field in EVERY if field not in pipelines}
    return Loader(path(), pipelines=pipelines | unused, **given | options)


def names(loader: Loader) -> list[str]:
    return list(loader.graph.leaf_nodes)


def digests(loader: resumable.Loader, fields: list[str], epochs: int = 2) -> dict[str, str]:
    """Digest every part of every sample, by field, epoch and index."""
    found: dict[str, str] = {}
    for epoch in loader.epochs(epochs):
        for step, batch in enumerate(epoch):
            indices = loader.sample_indices(epoch=epoch.number, step=step)
            for field, part in zip(fields, batch, strict=True):
                found |= {f"{field} {epoch.number} {i}": digest(s) for i, s in zip(indices, part, strict=True)}
    return found


def main(folder: Path, kill_after: int) -> None:
    """Train on all pipelines with a state saved after each batch; end with SIGKILL after so many batches, if any."""
    loader = make_loader(random_pipelines(), num_workers=1 + kill_after % 2)
    fields, wrapped = names(loader), resumable.wrap(loader, seed=3)
    state, log = folder / "state.json", folder / "log.txt"
    if state.exists():
        wrapped.load_state_dict(json.loads(state.read_text()))
    count = 0
    for epoch in wrapped.epochs(2):
        for batch in epoch:
            line = " ".join(f"{field}:{digest(part)}" for field, part in zip(fields, batch, strict=True))
            with log.open("a") as file:
                file.write(line + "\n")
            draft = state.with_suffix(".draft")
            draft.write_text(json.dumps(wrapped.state_dict()))
            draft.replace(state)
            count += 1
            if count == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
