"""PyTorch's own `DataLoader`, in its usual form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from benchmarks.case import Virtual

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.case import Case

__all__ = ["Plain", "dataset_of", "plain_loader"]


class Tensors(Virtual):
    """The same, with new tensors of a given size as samples.

    Args:
        length: number of samples.
        cost: µs of busy waiting per sample.
        size: bytes of a sample.
    """

    def __init__(self, length: int, cost: int, size: int) -> None:
        super().__init__(length, cost)
        self._numbers = size // 4

    def __getitem__(self, index: int, rng: Any = None) -> Any:  # as above
        return torch.full((self._numbers,), float(super().__getitem__(index)))


def dataset_of(case: Case) -> Any:
    """Return the dataset that torch's loaders read."""
    length, cost, size = case.length, case.cost, case.size
    return Tensors(length, cost, size) if size else Virtual(length, cost)


def plain_loader(case: Case) -> DataLoader[Any]:
    """Create the loader that is compared, and wrapped."""
    return DataLoader(dataset_of(case), batch_size=case.batch, shuffle=True, num_workers=case.workers)


class Plain:
    """It has no state: on a resume, it starts the epoch again."""

    def __init__(self, case: Case) -> None:
        self._loader = plain_loader(case)

    def start(self, state: Any = None) -> Iterator[Any]:
        """Start an epoch."""
        assert state is None
        return iter(self._loader)

    def state(self) -> Any:
        """There is none."""

    def state_at(self, step: int) -> Any:
        """There is none."""
