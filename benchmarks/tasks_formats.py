"""File formats: samples per second, first batches after a resume, and the cost of an index."""

from __future__ import annotations

import gc
import importlib
import json
import pickle
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import resumable
from benchmarks.contenders import format_files
from benchmarks.contenders.format_files import BATCH, LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Index", "Packing", "Reader", "Written"]

_PARTS = 64


class Written:
    """Writes the files that all contenders read.

    Args:
        folder: an existing folder.
        samples: number in tar shards; there are a tenth as many images, five times as many rows, and as many documents.
    """

    def __init__(self, folder: str, samples: int) -> None:
        root = Path(folder)
        format_files.write_tars(root / "tars", samples)
        format_files.write_images(root / "images", max(samples // 10, 4 * BATCH))
        format_files.write_rows(root / "rows", 5 * samples)
        format_files.write_tokens(root / "documents", samples)


class Reader:
    """One contender: reads batches in turns, and seeks.

    Args:
        path: of its class.
        options: its arguments.
    """

    def __init__(self, path: str, **options: Any) -> None:
        module, _, name = path.partition(":")
        found = getattr(importlib.import_module(module), name)
        self._make, self._states = partial(found, **options), dict[int, Any]()
        self._batches = self._again()

    def turn(self, batches: int, seconds: float) -> float:
        """Read up to `batches` batches for up to `seconds`, and return the seconds per sample."""
        begin, done = time.perf_counter(), 0
        while done < batches and time.perf_counter() - begin < seconds:
            next(self._batches)
            done += 1
        return (time.perf_counter() - begin) / done / BATCH

    def wait(self, percent: int) -> float:
        """Return the milliseconds from creating the loader to the first batch at a position of the epoch."""
        if percent not in self._states:
            contender = self._make()
            self._states[percent] = contender.state_at(len(contender) // BATCH * percent // 100)
            del contender
        gc.collect()
        begin = time.perf_counter()
        contender = self._make()
        batches = contender.start(self._states[percent])
        next(batches, None)  # with a lost buffer, nothing may be left
        waited = time.perf_counter() - begin
        del batches, contender  # closing a stream of datasets takes 5 seconds
        return waited * 1e3

    def epoch(self) -> tuple[float, float | None]:
        """Read an epoch; return the peak memory growth in megabytes, and the chi-square of parts in batches."""
        gc.collect()
        contender = self._make()
        before = most = _own_memory()
        numbers: list[list[int]] = []
        for batch in contender.start():
            numbers.append([number for number in map(_number, batch) if number is not None])
            if len(numbers) % 16 == 0 or len(numbers) < 16:  # measuring takes time
                most = max(most, _own_memory())
        return (most - before) / 1e6, _unevenness(numbers, len(contender))

    def size(self) -> int:
        """Return the size of the state at the last position."""
        state = next(reversed(self._states.values()))
        try:
            return len(json.dumps(state))
        except TypeError:
            return len(pickle.dumps(state))

    def _again(self) -> Iterator[Any]:
        contender = self._make()
        while True:
            yield from contender.start()


def _own_memory() -> int:
    """Return the memory of the process without mapped files, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


def _number(sample: Any) -> int | None:
    """Return the number of a sample, in the order of writing; None if it is unknown."""
    told = (
        next((sample[key] for key in ("cls", "id", "json") if key in sample), None)
        if isinstance(sample, dict)
        else None
    )
    found = told["number"] if isinstance(told, dict) else told
    return None if found is None else int(found)


def _unevenness(batches: list[list[int]], samples: int) -> float | None:
    """Return the chi-square per degree of freedom of the parts of the data in batches; 1 for a full shuffle."""
    whole = [np.array(batch) * _PARTS // samples for batch in batches if len(batch) == BATCH]
    if not whole:
        return None
    counts = np.array([np.bincount(parts, minlength=_PARTS)[:_PARTS] for parts in whole])
    expected, left = BATCH / _PARTS, 1 - (BATCH - 1) / (samples - 1)
    return float(((counts - expected) ** 2 / expected).sum(axis=1).mean() / (_PARTS - 1) / left)


class Index:
    """The index of tar shards.

    Args:
        folder: of the files.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder, "tars")

    def build(self) -> float:
        """Return the processor seconds of the first run, which scans the shards."""
        for path in self._kept():
            path.unlink()
        begin = time.process_time()
        resumable.Tars(sorted(self._folder.glob("*.tar")), decode=False)
        return time.process_time() - begin

    def size(self) -> int:
        """Return the bytes of the index."""
        return sum(path.stat().st_size for path in self._kept())

    def _kept(self) -> list[Path]:
        return list(self._folder.glob("*.resumable-index"))


class Packing:
    """The work of `Packed` before the first sample, from the lengths of documents alone.

    Args:
        folder: where lengths and sums are written.
        count: number of documents.
        how: the packing, as for `Packed`.
    """

    def __init__(self, folder: str, count: int, how: Any) -> None:
        self._path, self._how = Path(folder, f"lengths-{count}-{how}.npy"), how
        lengths = format_files.documents(count)
        np.save(self._path, lengths)
        self._tokens = np.broadcast_to(np.uint16(1), int(lengths.sum()))

    def build(self) -> float:
        """Return the processor seconds of the first run."""
        for path in self._kept():
            path.unlink()
        begin = time.process_time()
        resumable.Packed(self._tokens, LENGTH, documents=self._path, how=self._how)
        return time.process_time() - begin

    def size(self) -> int:
        """Return the bytes that are stored."""
        return sum(path.stat().st_size for path in self._kept())

    def _kept(self) -> list[Path]:
        return list(self._path.parent.glob(f"{self._path.name}.*"))
