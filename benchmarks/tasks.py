"""Throughput and waiting time, measured inside a contender's process."""

from __future__ import annotations

import gc
import json
import pickle
import time
from typing import Any

from benchmarks.case import Case
from benchmarks.contenders import make

__all__ = ["FirstBatch", "Throughput"]


class Throughput:
    """Reads batches in turns, all of one epoch.

    Args:
        name: of the contender.
        case: fields of the `Case`.
        warm: batches to read first.
    """

    def __init__(self, name: str, case: dict[str, Any], warm: int) -> None:
        self._batches = make(name, Case(**case)).start()
        self._read(warm)

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


class FirstBatch:
    """Creates a loader repeatedly, from the start or from a state, and waits for its first batch.

    Args:
        name: of the contender.
        case: fields of the `Case`.
        step: batches before the state.
    """

    def __init__(self, name: str, case: dict[str, Any], step: int) -> None:
        self._name, self._case = name, Case(**case)
        self._state = make(name, self._case).state_at(step)
        gc.collect()

    def size(self) -> int | None:
        """Return the size of the state in bytes, as JSON if possible; None if there is no state."""
        if self._state is None:
            return None
        if isinstance(self._state, str):
            return len(self._state)
        try:
            return len(json.dumps(self._state))
        except TypeError:
            return len(pickle.dumps(self._state))

    def wait(self, *, resume: bool) -> float:
        """Return the milliseconds from creating the loader to its first batch."""
        begin = time.perf_counter()
        contender = make(self._name, self._case)
        batches = contender.start(self._state if resume else None)
        next(batches)
        waited = time.perf_counter() - begin
        del batches, contender
        gc.collect()
        return waited * 1e3
