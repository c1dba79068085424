"""DALI's iterators, alone and wrapped, measured inside a process."""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy
from PIL import Image

import resumable

__all__ = ["Reading", "Resuming", "decoding", "iterator", "write_images", "write_list"]

BATCH = 64
_DIFFERENT = 256  # distinct images on disk; a longer file list repeats them
_OPTIONS = {"reader_name": "Reader", "last_batch_policy": LastBatchPolicy.PARTIAL, "auto_reset": True}


def write_images(root: Path, pixels: int = 224) -> None:
    """Write JPEG files of smooth noise, which take as long to decode as photographs."""
    draw = np.random.default_rng(0)
    for number in range(_DIFFERENT):
        coarse = Image.fromarray(draw.integers(0, 256, (16, 16, 3), np.uint8))
        coarse.resize((pixels, pixels)).save(root / f"{number}.jpg", quality=90)


def write_list(root: Path, files: int) -> str:
    """Write a list of files with labels."""
    path = root / f"list-{files}.txt"
    path.write_text("".join(f"{number % _DIFFERENT}.jpg {number}\n" for number in range(files)))
    return str(path)


@pipeline_def(batch_size=BATCH, num_threads=2, device_id=None, seed=0)  # type: ignore[untyped-decorator]  # DALI's
def decoding(root: str, listed: str) -> Any:
    """Read, decode, crop, resize and flip."""
    jpegs, labels = fn.readers.file(
        file_root=root, file_list=listed, random_shuffle=True, pad_last_batch=True, name="Reader"
    )
    images = fn.decoders.image_random_crop(jpegs, device="cpu", output_type=types.RGB)
    images = fn.resize(images, resize_x=128, resize_y=128)
    mirror = fn.random.coin_flip(probability=0.5)
    return fn.crop_mirror_normalize(images, dtype=types.FLOAT, output_layout="CHW", mirror=mirror), labels


@pipeline_def(batch_size=BATCH, num_threads=2, device_id=None, seed=0)  # type: ignore[untyped-decorator]  # DALI's
def reading(root: str, listed: str) -> Any:
    """Read without decoding, to make all other costs visible: the first bytes of each file."""
    jpegs, labels = fn.readers.file(
        file_root=root, file_list=listed, random_shuffle=True, pad_last_batch=True, name="Reader"
    )
    return jpegs[:16], labels


def iterator(pipeline: Any) -> Any:
    """Return an iterator over a pipeline."""
    return DALIGenericIterator(pipeline, ["data", "label"], **_OPTIONS)


class Reading:
    """Reads batches of one iterator in turns, epoch after epoch.

    Args:
        how: "alone", "wrapped", or "saved" for wrapped with a state after each batch.
        decode: whether the images are decoded.
        files: number of names in the list.
        warm: batches to read first.
    """

    def __init__(self, how: str, files: int, warm: int, *, decode: bool) -> None:
        self._folder = tempfile.TemporaryDirectory()
        root = Path(self._folder.name)
        write_images(root)
        pipeline = (decoding if decode else reading)(str(root), write_list(root, files))
        self._iterator = iterator(pipeline)
        self._loader = None if how == "alone" else resumable.wrap(self._iterator)
        self._save = how == "saved"
        self._batches = iter(self._loader or self._iterator)
        self._read(warm)

    def turn(self, batches: int, seconds: float) -> float:
        """Read up to `batches` batches for up to `seconds`, and return images per second."""
        begin, done = time.perf_counter(), 0
        while done < batches and time.perf_counter() - begin < seconds:
            self._read(1)
            done += 1
        return done * BATCH / (time.perf_counter() - begin)

    def _read(self, count: int) -> None:
        for _ in range(count):
            try:
                next(self._batches)
            except StopIteration:
                self._batches = iter(self._loader or self._iterator)
                next(self._batches)
            if self._save and self._loader is not None:
                self._loader.state_dict()


class Resuming:
    """Creates a wrapped iterator repeatedly, from the start or from a state deep in the epoch.

    Args:
        files: number of names in the list.
        behind: fraction of the epoch before the state, from 0 to 1.
    """

    def __init__(self, files: int, behind: float) -> None:
        self._folder = tempfile.TemporaryDirectory()
        root = Path(self._folder.name)
        write_images(root, pixels=32)
        self._root, self._listed = str(root), write_list(root, files)
        self._loader = self._make()
        steps = max(1, int(len(self._loader) * behind))
        batches = iter(self._loader)
        for _ in range(steps):
            next(batches)
        self._state = self._loader.state_dict()

    def size(self) -> int:
        """Return the size of DALI's own checkpoints in the state."""
        return sum(map(len, self._state["source_state"]["snapshot"]["checkpoints"]))

    def save(self, calls: int) -> float:
        """Return the µs of `state_dict()` after a new batch, without reading the batch."""
        spent, batches = [], iter(self._loader)
        for _ in range(calls):
            next(batches, None)
            begin = time.perf_counter()
            self._loader.state_dict()
            spent.append(time.perf_counter() - begin)
        return statistics.median(spent) * 1e6

    def wait(self, *, resume: bool) -> float:
        """Return the milliseconds from creating the pipeline to the first batch."""
        begin = time.perf_counter()
        loader = self._make()
        if resume:
            loader.load_state_dict(self._state)
        next(iter(loader))
        waited = time.perf_counter() - begin
        del loader
        gc.collect()
        return waited * 1e3

    def wait_alone(self) -> float:
        """Return the same for an unwrapped iterator, at the start."""
        begin = time.perf_counter()
        next(iterator(reading(self._root, self._listed)))
        return (time.perf_counter() - begin) * 1e3

    def _make(self) -> resumable.Loader:
        return resumable.wrap(iterator(reading(self._root, self._listed)))
