"""Grain's `DataLoader`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import grain
import numpy as np

from benchmarks.case import Virtual

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.case import Case

__all__ = ["NO_THREADS", "GrainLoader", "virtual"]

# Faster here than any number of threads, because the samples are Python code. Grain's default of 16 threads and 500
# prefetched elements is several times slower, and a turn would deliver elements read during other turns.
NO_THREADS: Any = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


class _Arrays(Virtual):
    """The same, with new arrays as samples: Grain stacks them, and passes them through shared memory."""

    def __init__(self, case: Case) -> None:
        super().__init__(case.length, case.cost)
        self._numbers = case.size // 4

    def __getitem__(self, index: int, rng: Any = None) -> Any:  # as in the base class
        return np.full(self._numbers, super().__getitem__(index), np.float32)


def virtual(case: Case) -> Any:
    """Return the dataset that Grain reads."""
    return _Arrays(case) if case.size else Virtual(case.length, case.cost)


class GrainLoader:
    """An `IndexSampler`, the data and a `Batch` operation, read without threads."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._batches: Any = None
        source: Any = virtual(case)
        sampler = grain.samplers.IndexSampler(
            case.length, shard_options=grain.sharding.NoSharding(), shuffle=True, num_epochs=1, seed=0
        )
        self._loader: Any = grain.DataLoader(
            data_source=source,
            sampler=sampler,
            operations=[grain.transforms.Batch(case.batch)],
            worker_count=case.workers,
            read_options=NO_THREADS,
        )

    def start(self, state: Any = None) -> Iterator[Any]:
        """Start an epoch, or continue."""
        self._batches = iter(self._loader)
        if state is not None:
            self._batches.set_state(state.encode())
        batches: Iterator[Any] = self._batches
        return batches

    def state(self) -> Any:
        """Return the state, as text."""
        return self._batches.get_state().decode()

    def state_at(self, step: int) -> Any:
        """Set the counters of an initial state: reading up to the step would take minutes."""
        next(self.start())
        values = json.loads(self.state())
        turns = max(self._case.workers, 1)
        for worker in range(turns):
            done = len(range(worker, step, turns))  # batches of this worker, which takes every `turns`-th sample
            values["last_seen_indices"][str(worker)] = (done * self._case.batch - 1) * turns + worker
        values["last_worker_index"] = (step - 1) % turns if self._case.workers else -1
        return json.dumps(values, indent=4)
