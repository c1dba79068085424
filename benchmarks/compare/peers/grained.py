"""Grain's `Dataset` interface: shuffled in each epoch, batched, and read by worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grain

from benchmarks.compare.job import EPOCHS, Job, Setting, augmented, numbers, seed_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Grained"]


class _Augment(grain.transforms.RandomMap):  # type: ignore[misc]  # it has no types
    def random_map(self, element: int, rng: Any) -> Any:
        return augmented(element, rng.random())


class Grained(Job):
    """All epochs are one iterator, whose state is its position."""

    def __init__(self, setting: Setting, folder: str) -> None:
        del folder
        seed_all(setting.seed)
        data = grain.MapDataset.source(numbers(setting.data)).seed(setting.seed)
        if setting.shuffle:
            data = data.shuffle()
        data = data.repeat(EPOCHS)[setting.rank :: setting.ranks].random_map(_Augment())
        batches = data.batch(setting.batch).to_iter_dataset()
        if setting.workers:
            options = grain.multiprocessing.MultiprocessingOptions(num_workers=setting.workers)
            batches = batches.mp_prefetch(options)
        self.loader = iter(batches)

    def loops(self, first: int, step: int) -> Iterator[Iterable[Any]]:
        """Yield the one iterator."""
        del first, step
        yield self.loader

    def state(self) -> Any:
        """Return the state of the iterator."""
        return self.loader.get_state()

    def load(self, state: Any) -> None:
        """Set it."""
        self.loader.set_state(state)
