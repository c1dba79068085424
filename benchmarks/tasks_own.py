"""Measurements of the library alone: the cost of its state, and the memory of its order."""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import resumable
from benchmarks.case import Case
from benchmarks.contenders import make
from benchmarks.contenders.plain import plain_loader

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Memory", "StateCost", "peak", "resident"]

_BEHIND = 100


class StateCost:
    """Saves, loads and acknowledges states in the middle of an epoch.

    Args:
        lengths: samples of the datasets.
    """

    def __init__(self, lengths: list[int]) -> None:
        self._auto = {length: resumable.wrap(plain_loader(Case(length)), randomness="off") for length in lengths}
        self._manual = {
            length: resumable.wrap(plain_loader(Case(length)), randomness="off", ack="manual") for length in lengths
        }
        self._batches = {length: iter(loader) for length, loader in self._auto.items()}
        for batches in self._batches.values():
            next(batches)

    def size(self, length: int) -> int:
        """Return the size of a state at the end of the epoch, as JSON."""
        loader = self._auto[length]
        loader.seek(epoch=0, step=len(loader))
        return len(json.dumps(loader.state_dict()))

    def save(self, length: int, calls: int) -> float:
        """Return the µs of `state_dict()`."""
        return _each(calls, self._auto[length].state_dict)

    def load(self, length: int, calls: int) -> float:
        """Return the µs of `load_state_dict()`."""
        loader = self._auto[length]
        state = loader.state_dict()
        return _each(calls, lambda: loader.load_state_dict(state))

    def acknowledge(self, length: int, calls: int) -> float:
        """Return the µs of `ack()`."""
        loader = self._manual[length]
        loader.seek(epoch=0)
        return _each(sum(1 for _ in islice(loader, calls)), loader.ack)


def _each(calls: int, function: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - begin) / calls * 1e6


class Memory:
    """Reads a dataset with a loader, and measures the memory of this process.

    Args:
        name: of the contender. It reads a small dataset first, so its imports do not count.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._read(Case(1000), 10)
        gc.collect()

    def grow(self, length: int, batches: int) -> float:
        """Return the peak memory growth in megabytes while reading `batches` batches of `length` samples."""
        before, peak_before = resident(), peak()
        self._read(Case(length), batches)
        top = peak()
        return max((top if top > peak_before else resident()) - before, 0.0)

    def _read(self, case: Case, batches: int) -> None:
        self._batches = make(self._name, case).start()  # kept alive, so its memory counts
        for _ in range(batches):
            next(self._batches)


def resident() -> float:
    """Return the current resident memory in megabytes; the peak if the system does not report it."""
    status = Path("/proc/self/statm")
    if not status.exists():
        return peak()
    return int(status.read_text().split()[1]) * resource.getpagesize() / 1e6


def peak() -> float:
    """Return the peak resident memory in megabytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
