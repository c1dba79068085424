"""Small JPEG files of handwritten digits, the same ones each time, and what is compared of them."""

from __future__ import annotations

import atexit
import io
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from nvidia.dali import fn, types
from PIL import Image
from sklearn.datasets import load_digits

import resumable
from resumable.backends.dali.source import source

if TYPE_CHECKING:
    import torch

COUNT = 23


@cache
def encoded(count: int = COUNT) -> list[tuple[bytes, int]]:
    digits = load_digits()
    return [(_jpeg(digits.images[index], index), int(digits.target[index])) for index in range(count)]


def _jpeg(digit: np.ndarray[Any, Any], index: int) -> bytes:
    gray = np.kron(digit * 15, np.ones((4 + index % 3, 4))).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(np.stack([gray, gray // 2, 255 - gray], -1)).save(buffer, "JPEG")
    return buffer.getvalue()


def write(folder: Path, count: int = COUNT) -> Path:
    """Write a folder of classes."""
    for number, (data, label) in enumerate(encoded(count)):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        (folder / str(label) / f"{number:04d}.jpg").write_bytes(data)
    return folder


@cache
def images(count: int = COUNT) -> Path:
    """Return a folder of classes that lives as long as this process."""
    folder = Path(tempfile.mkdtemp(prefix="dali-images-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write(folder, count)


class Bytes:
    """A map-style dataset whose labels are drawn from Python's global generator."""

    def __init__(self, count: int = COUNT) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[bytes, np.ndarray[Any, Any]]:
        return encoded(self.count)[index][0], np.array([index, random.random()], np.float32)


def augment(raw: Any, label: Any, u: Any) -> tuple[Any, Any]:
    """A crop, a flip and a change of brightness, each by a number of the sample."""
    image = fn.decoders.image(raw)
    image = fn.crop(image, crop=(20, 20), crop_pos_x=u[0], crop_pos_y=u[1])
    image = fn.flip(image, horizontal=fn.cast(u[2] < 0.5, dtype=types.INT32))
    return fn.brightness(image, brightness=0.5 + u[3], dtype=types.UINT8), label


def plain(raw: Any, label: Any) -> tuple[Any, Any]:
    """No augmentation."""
    return fn.resize(fn.decoders.image(raw), size=(16, 16)), label


def wrap(data: Any = None, *, batch_size: int = 4, graph: Any = None, **options: Any) -> resumable.Loader:
    """Wrap the digits; options of source() and of wrap() together, with no uniforms where there are no keys."""
    ours = {name: options.pop(name) for name in _OURS if name in options}
    keyed = options.get("randomness", "sample") == "sample"
    graph = graph or (augment if keyed else plain)
    if graph is augment:
        ours["uniforms"] = 4
    made = source(images() if data is None else data, pipeline=graph, **ours)
    return resumable.wrap(made, batch_size=batch_size, **{"shuffle": True, "seed": 7, **options})


_OURS = (
    "uniforms", "num_threads", "prefetch_queue_depth", "py_num_workers", "py_start_method", "on_nondeterministic",
    "exec_dynamic", "outputs", "enable_conditionals", "exec_async", "exec_pipelined", "file_root",
)  # fmt: skip


def pixels(batch: dict[str, torch.Tensor]) -> list[bytes]:
    """Return each sample of a batch as bytes."""
    return [b"".join(part.numpy().tobytes() for part in sample) for sample in zip(*batch.values(), strict=True)]
