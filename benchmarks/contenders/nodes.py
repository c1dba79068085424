"""torchdata's nodes: a sampler, a batcher, and a mapper that reads a whole batch, in processes if there are workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import RandomSampler, default_collate
from torchdata.nodes import Batcher, Loader, Mapper, ParallelMapper, SamplerWrapper

from benchmarks.contenders.plain import dataset_of
from benchmarks.contenders.reading import read_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.case import Case

__all__ = ["Nodes"]


class Nodes:
    """The graph that torchdata's documentation builds instead of a `DataLoader`."""

    def __init__(self, case: Case) -> None:
        dataset: Any = dataset_of(case)
        generator = torch.Generator().manual_seed(0)  # without it, the order would differ after a resume
        sampler = RandomSampler(dataset, generator=generator)
        batches = Batcher(SamplerWrapper(sampler), case.batch, drop_last=False)
        read = _Read(dataset)
        mapper: Any = (
            ParallelMapper(batches, read, num_workers=case.workers, method="process")
            if case.workers
            else Mapper(batches, read)
        )
        self._loader: Any = Loader(mapper)

    def start(self, state: Any = None) -> Iterator[Any]:
        """Start an epoch, or continue."""
        if state is not None:
            self._loader.load_state_dict(state)
        batches: Iterator[Any] = iter(self._loader)
        return batches

    def state(self) -> Any:
        """Return the state."""
        return self._loader.state_dict()

    def state_at(self, step: int) -> Any:
        """Read up to a step."""
        return read_to(self, step)


class _Read:
    """Reads a batch of indices; a class, because it must be pickled if workers are not forked."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __call__(self, indices: list[int]) -> Any:
        return default_collate([self._dataset[index] for index in indices])
