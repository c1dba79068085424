"""Formats of files: samples per second, first batches after a resume, and what an index takes."""

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


class Written:
    """Writes the files that all read.

    Args:
        folder: where to; it is there.
        samples: in tar shards; there are a tenth as many images, five times as many rows, and as many documents.
    """

    def __init__(self, folder: str, samples: int) -> None:
        root = Path(folder)
        format_files.write_tars(root / "tars", samples)
        format_files.write_images(root / "images", max(samples // 10, 4 * BATCH))
        format_files.write_rows(root / "rows", 5 * samples)
        format_files.write_tokens(root / "documents", samples)


class Reader:
    """One contender: reads batches in turns, and goes to places.

    Args:
        path: of its class.
        options: what to make it with.
    """

    def __init__(self, path: str, **options: Any) -> None:
        module, _, name = path.partition(":")
        found = getattr(importlib.import_module(module), name)
        self._make, self._states = partial(found, **options), dict[int, Any]()
        self._batches = self._again()

    def turn(self, batches: int, seconds: float) -> float:
        """Read up to `batches` batches for up to `seconds`, and return the processor seconds per sample.

        Those of all threads count, so that a library that reads ahead in some is not ahead by that.
        """
        begin, wall, done = time.process_time(), time.perf_counter(), 0
        while done < batches and time.perf_counter() - wall < seconds:
            next(self._batches)
            done += BATCH
        return (time.process_time() - begin) / done

    def wait(self, percent: int) -> float:
        """Return the processor milliseconds from making the loader to the first batch at a place of the epoch."""
        if percent not in self._states:
            contender = self._make()
            self._states[percent] = contender.state_at(len(contender) // BATCH * percent // 100)
            del contender
        gc.collect()
        begin = time.process_time()
        contender = self._make()
        next(contender.start(self._states[percent]))
        return (time.process_time() - begin) * 1e3

    def size(self) -> int:
        """Return the bytes of the state at the last place."""
        state = next(reversed(self._states.values()))
        try:
            return len(json.dumps(state))
        except TypeError:
            return len(pickle.dumps(state))

    def _again(self) -> Iterator[Any]:
        contender = self._make()
        while True:
            yield from contender.start()


class Index:
    """The index of tar shards.

    Args:
        folder: of the files.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder, "tars")

    def build(self) -> float:
        """Return the processor seconds of the first start, in which the shards are scanned."""
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
    """What `Packed` has before the first sample, of lengths of documents alone.

    Args:
        folder: where lengths and sums are written.
        count: number of documents.
        how: as `Packed` takes it.
    """

    def __init__(self, folder: str, count: int, how: Any) -> None:
        self._path, self._how = Path(folder, f"lengths-{count}-{how}.npy"), how
        lengths = format_files.documents(count)
        np.save(self._path, lengths)
        self._tokens = np.broadcast_to(np.uint16(1), int(lengths.sum()))

    def build(self) -> float:
        """Return the processor seconds of the first start."""
        for path in self._kept():
            path.unlink()
        begin = time.process_time()
        resumable.Packed(self._tokens, LENGTH, documents=self._path, how=self._how)
        return time.process_time() - begin

    def size(self) -> int:
        """Return the bytes that are kept."""
        return sum(path.stat().st_size for path in self._kept())

    def _kept(self) -> list[Path]:
        return list(self._path.parent.glob(f"{self._path.name}.*"))
