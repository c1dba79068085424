"""Grain's `Dataset` interface: shuffle and batch by index, with worker processes if requested."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grain

from benchmarks.contenders.grain_loader import NO_THREADS, virtual

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.case import Case

__all__ = ["GrainDataset"]


class GrainDataset:
    """A `MapDataset`, read without threads."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._batches: Any = None
        source: Any = virtual(case)
        shuffled = grain.MapDataset.source(source).shuffle(seed=0).batch(case.batch)
        self._dataset: Any = shuffled.to_iter_dataset(NO_THREADS)
        if case.workers:
            options = grain.multiprocessing.MultiprocessingOptions(num_workers=case.workers)
            self._dataset = self._dataset.mp_prefetch(options)

    def start(self, state: Any = None) -> Iterator[Any]:
        """Start an epoch, or continue."""
        self._batches = iter(self._dataset)
        if state is not None:
            self._batches.set_state(state)
        batches: Iterator[Any] = self._batches
        return batches

    def state(self) -> Any:
        """Return the state."""
        return self._batches.get_state()

    def state_at(self, step: int) -> Any:
        """Set the counters of an initial state: reading up to the step would take minutes."""
        next(self.start())
        state: dict[str, Any] = self.state()
        turns = self._case.workers
        if not turns:
            return {**state, "next_index": step}
        states = [{"next_index": len(range(worker, step, turns))} for worker in range(turns)]
        return {**state, "next_index_in_cycle": step % turns, "iterators_in_use_states": states}
