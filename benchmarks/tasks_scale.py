"""Costs as work grows: samples, workers and ranks. Each rank is its real loader, one after another."""

from __future__ import annotations

import gc
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import resumable
from benchmarks.case import Case, Virtual
from benchmarks.contenders import make
from benchmarks.tasks_own import resident

__all__ = ["Ranks", "Samples", "Workers"]

_LONG = 10**12
_BATCH = 64


class Samples:
    """One loader over a growing number of samples, in a process that has read a small dataset before."""

    def __init__(self) -> None:
        self.measure(1000, 10)

    def measure(self, length: int, steps: int) -> dict[str, float]:
        """Return processor time per step and to a first batch, bytes of a state, and megabytes."""
        gc.collect()
        before = resident()
        loader = _loader(length)
        loader.seek(epoch=0, step=len(loader) * 9 // 10)
        state, epoch = loader.state_dict(), iter(loader)
        next(epoch)
        begin, done = time.process_time(), 0
        for _ in zip(range(steps), epoch, strict=False):
            done += 1
        spent = time.process_time() - begin
        waited = []
        for _ in range(5):
            again = time.process_time()
            resumed = _loader(length)
            resumed.load_state_dict(state)
            next(iter(resumed))
            waited.append(time.process_time() - again)
        grown = max(resident() - before, 0.0)
        size = len(json.dumps(state))
        return {"us": spent / max(done, 1) * 1e6, "ms": sorted(waited)[2] * 1e3, "bytes": size, "MB": grown}


def _loader(length: int, **options: Any) -> resumable.Loader[Any]:
    source: Any = Virtual(length)
    return resumable.wrap(source, batch_size=_BATCH, shuffle=True, tail="drop", randomness="off", seed=0, **options)


class Ranks:
    """Loaders of several ranks over 10¹² samples, one after another."""

    def measure(self, size: int, sample: int) -> dict[str, float]:
        """Measure `sample` of the ranks, and return the costs of each, and the size of the state."""
        ranks = np.unique(np.linspace(0, size - 1, min(size, sample)).astype(int)).tolist()
        first = _loader(_LONG, world=resumable.World(0, size))
        first.seek(epoch=1, step=len(first) // 2)
        state, opened, stepped, kept = first.state_dict(), [], [], []
        before = resident()
        for rank in ranks:
            begin = time.process_time()
            loader = _loader(_LONG, world=resumable.World(rank, size))
            loader.load_state_dict(state)
            epoch = iter(loader)
            next(epoch)
            opened.append(time.process_time() - begin)
            begin = time.process_time()
            for _ in range(20):
                next(epoch)
            stepped.append((time.process_time() - begin) / 20)
            kept.append((loader, epoch))
        return {
            "ms": sorted(opened)[len(opened) // 2] * 1e3,
            "us": sorted(stepped)[len(stepped) // 2] * 1e6,
            "bytes": len(json.dumps(state)),
            "kB": max(resident() - before, 0.0) * 1e3 / len(ranks),
        }

    def agree(self, size: int) -> int:
        """List the samples of one step on every rank; return how many ranks together have the global batch in order."""
        step = len(_loader(_LONG, world=resumable.World(0, size))) // 3
        loader = _loader(_LONG, world=resumable.World(0, size))
        start = step * size * _BATCH
        wanted = resumable.samplers.Shuffle(_LONG, seed=0).indices(0, start, start + size * _BATCH)
        for rank in range(size):
            share = wanted[rank * _BATCH : (rank + 1) * _BATCH].tolist()
            assert loader.sample_indices(epoch=0, step=step, rank=rank) == share
        return size


class Workers:
    """A `DataLoader` with a growing number of workers, and the memory of all its processes.

    Args:
        name: of the contender.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._batches: Any = None
        self._read(Case(1000), 10)

    def measure(self, length: int, workers: int, batches: int) -> dict[str, float]:
        """Return µs per batch, and megabytes: of this process, of a worker, of all processes."""
        self._read(Case(length, workers), batches)
        processor = time.process_time()
        for _ in range(batches):
            next(self._batches)
        processor = time.process_time() - processor
        own, others = os.getpid(), _children(os.getpid())
        each = [_private(child) for child in others]
        found = {
            "us": processor / batches * 1e6,
            "own": _private(own),
            "worker": sum(each) / max(len(each), 1),
            "all": sum(_share(process) for process in (own, *others)),
            "workers": len(others),
        }
        self._batches = None
        gc.collect()
        return found

    def _read(self, case: Case, batches: int) -> None:
        self._batches = make(self._name, case).start()
        for _ in range(batches):
            next(self._batches)


def _children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def _private(process: int) -> float:
    """Return the memory of a process that it shares with no other, in megabytes."""
    return sum(_memory(process).get(name, 0) for name in ("Private_Clean", "Private_Dirty")) / 1e3


def _share(process: int) -> float:
    """Return the memory of a process, with its part of shared memory, in megabytes."""
    return _memory(process).get("Pss", 0) / 1e3


def _memory(process: int) -> dict[str, int]:
    lines = [line.split() for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]]
    return {words[0].rstrip(":"): int(words[1]) for words in lines}
