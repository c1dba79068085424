"""Reading images through DALI, measured inside a contender's process."""

from __future__ import annotations

import time
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvidia.dali import fn, pipeline_def
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy
from PIL import Image
from sklearn.datasets import load_sample_images

import resumable
from resumable.backends.dali import source

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Images"]

_FILES, _EPOCH = 256, 8192  # distinct files, and samples per epoch, which repeat the files


class Images:
    """Decodes and resizes JPEG files.

    Args:
        name: "reader" for DALI's own, or how ours gets its bytes: "paths", "dataset" or "workers".
        folder: of the files; they are written if there are none.
        width: of an image, in pixels.
        height: of an image, in pixels.
        batch: samples per batch.
    """

    def __init__(self, name: str, folder: str, width: int, height: int, batch: int) -> None:
        files = _files(Path(folder), width, height) * (_EPOCH // _FILES)
        self._batches = _reader(files, batch) if name == "reader" else _ours(name, files, batch)
        self._read(8)

    def turn(self, batches: int, seconds: float, lead: int) -> dict[str, float]:
        """Read up to `batches` batches for up to `seconds`, after `lead` that do not count.

        Returns:
            µs per batch: wall-clock time, and processor time of this process.
        """
        self._read(lead)
        wall, processor, done = time.perf_counter(), time.process_time(), 0
        while done < batches and time.perf_counter() - wall < seconds:
            self._read(1)
            done += 1
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        return {"wall": wall / done * 1e6, "processor": processor / done * 1e6}

    def _read(self, count: int) -> None:
        for _ in range(count):
            next(self._batches)


class _Bytes:
    """A map-style dataset of encoded images."""

    def __init__(self, files: list[str]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        return Path(self._files[index]).read_bytes(), index


def _files(folder: Path, width: int, height: int) -> list[str]:
    pictures = [Image.fromarray(picture) for picture in load_sample_images().images]
    files = [folder / f"{number:04d}.jpg" for number in range(_FILES)]
    for number, file in enumerate(files):
        if not file.exists():
            left, top = number % (641 - width), number * 7 % (428 - height)
            pictures[number % 2].crop((left, top, left + width, top + height)).save(file)
    return [str(file) for file in files]


def _graph(raw: Any, label: Any) -> tuple[Any, Any]:
    return fn.resize(fn.decoders.image(raw), size=(64, 64)), label


def _reader(files: list[str], batch: int) -> Iterator[Any]:
    @pipeline_def(batch_size=batch, num_threads=2, device_id=None, seed=0)  # type: ignore[untyped-decorator]  # DALI's
    def pipeline() -> Any:
        raw, label = fn.readers.file(files=files, random_shuffle=True, initial_fill=1024, name="Reader")
        return _graph(raw, label)

    iterator = DALIGenericIterator(
        pipeline(), ["data", "label"], reader_name="Reader", last_batch_policy=LastBatchPolicy.DROP, auto_reset=True
    )
    return chain.from_iterable(repeat(iterator))


def _ours(name: str, files: list[str], batch: int) -> Iterator[Any]:
    data: Any = files if name == "paths" else _Bytes(files)
    made = source(data, pipeline=_graph, num_threads=2, py_num_workers=int(name == "workers"))
    loader = resumable.wrap(made, batch_size=batch, shuffle=True, tail="drop")
    return chain.from_iterable(repeat(loader))
