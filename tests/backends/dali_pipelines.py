"""DALI pipelines over real JPEG files: digits and photographs of scikit-learn."""

from __future__ import annotations

import functools
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from nvidia.dali import Pipeline, fn, ops, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIClassificationIterator, DALIGenericIterator, LastBatchPolicy
from PIL import Image
from sklearn.datasets import load_digits, load_sample_image

FILES = 19
BATCH = 4
_keep: list[tempfile.TemporaryDirectory[str]] = []


@functools.cache
def images(count: int = FILES) -> str:
    """Write JPEG files in two classes, and return their directory: the same content in every process."""
    _keep.append(tempfile.TemporaryDirectory())
    root = Path(_keep[-1].name)
    write_images(root, count)
    return str(root)


def write_images(root: Path, count: int) -> None:
    """Write digits, and every fifth time a part of a photograph, which is not square."""
    digits, photograph = load_digits().images, load_sample_image("china.jpg")
    for number in range(count):
        folder = root / ("odd" if number % 2 else "even")
        folder.mkdir(exist_ok=True, parents=True)
        pixels = np.repeat(digits[number % len(digits)][..., None] * 15, 3, axis=2)
        if number % 5 == 0:
            pixels = photograph[number : number + 40, number : number + 56]
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:04d}.jpg", quality=90)


def images_and_labels(reader: dict[str, Any]) -> Any:
    """The graph of NVIDIA's page about PyTorch Lightning, with a random crop, for small images."""
    jpegs, labels = fn.readers.file(
        name="Reader", **{"file_root": images(), "random_shuffle": True, "pad_last_batch": True, **reader}
    )
    decoded = fn.decoders.image_random_crop(jpegs, device="cpu", output_type=types.RGB, random_area=[0.3, 1.0])
    resized = fn.resize(decoded, device="cpu", resize_x=12, resize_y=12)
    normalized = fn.crop_mirror_normalize(
        resized,
        dtype=types.FLOAT,
        output_layout="CHW",
        crop=(10, 10),
        mean=[128.0] * 3,
        std=[64.0] * 3,
        mirror=fn.random.coin_flip(probability=0.5),
    )
    return normalized, labels


@pipeline_def(num_threads=2, device_id=None)  # type: ignore[untyped-decorator]  # DALI's
def training_pipeline(reader: dict[str, Any]) -> Any:
    return images_and_labels(reader)


class LegacyPipeline(Pipeline):  # type: ignore[misc]  # DALI's
    """The form of early examples: operators in `__init__`, their connections in `define_graph`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(BATCH, 2, None, seed=12, **options)
        self.input = ops.FileReader(file_root=images(), random_shuffle=True, pad_last_batch=True)
        self.decode = ops.ImageDecoderRandomCrop(device="cpu", output_type=types.RGB, random_area=[0.3, 1.0])
        self.resize = ops.Resize(device="cpu", resize_x=12, resize_y=12)
        self.normalize = ops.CropMirrorNormalize(
            device="cpu", dtype=types.FLOAT, output_layout=types.NCHW, crop=(10, 10), mean=[128.0] * 3, std=[64.0] * 3
        )
        self.coin = ops.CoinFlip(probability=0.5)

    def define_graph(self) -> Any:
        jpegs, labels = self.input(name="Reader")
        return self.normalize(self.resize(self.decode(jpegs)), mirror=self.coin()), labels


def legacy_iterator(**iterator: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # DALI's, of its old class names
        return made(LegacyPipeline(), **iterator)


def made(pipelines: Any, kind: Any = DALIGenericIterator, **iterator: Any) -> Any:
    options = {"reader_name": "Reader", "auto_reset": True, "last_batch_policy": LastBatchPolicy.PARTIAL, **iterator}
    if kind is DALIClassificationIterator:
        return kind(pipelines, **options)
    return kind(pipelines, ["data", "label"], **options)


def pipelines(count: int = 1, reader: dict[str, Any] | None = None, **options: Any) -> list[Any]:
    shards = {"num_shards": count} if count > 1 else {}
    return [
        training_pipeline(
            {**shards, **({"shard_id": number} if shards else {}), **(reader or {})},
            **{"batch_size": BATCH, "seed": 12, **options},
        )
        for number in range(count)
    ]


def iterator(
    count: int = 1, *, reader: dict[str, Any] | None = None, pipeline: dict[str, Any] | None = None, **options: Any
) -> Any:
    """Make a DALI iterator over `count` pipelines, each with a shard of its own."""
    return made(pipelines(count, reader, **(pipeline or {})), **options)
