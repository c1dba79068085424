"""Train loaders of each kind, whose batches tell where they come from; sized and unsized."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset

import resumable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable import Loader


class Samples(Dataset[torch.Tensor]):
    """Map-style, augmented from the global generators."""

    def __init__(self, length: int, base: float) -> None:
        self.length, self.base = length, base

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([self.base + index + 0.1 * random.random() + 0.1 * torch.rand(()).item()])


def batch_of(epoch: int, number: int, base: float) -> torch.Tensor:
    first = base + 100 * epoch + number
    return torch.tensor([[first + 0.1 * random.random()], [first + 0.5]])


def indexed(batches: int = 5, base: float = 0) -> Loader:
    return resumable.wrap(DataLoader(Samples(2 * batches, base), batch_size=2, shuffle=True), seed=3)


class Remembering(Samples):
    """Map-style, with a state of its own: how many samples were read before."""

    read = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        self.read += 1
        return super().__getitem__(index) + 1000 * self.read

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


def remembering(batches: int = 5, base: float = 0) -> Loader:
    return resumable.wrap(DataLoader(Remembering(2 * batches, base), batch_size=2, shuffle=True), seed=3)


class Stateful:
    """A reader with a state of its own, which goes on where it stands."""

    def __init__(self, batches: int, base: float) -> None:
        self.batches, self.base = batches, base
        self.epoch = self.given = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.given < self.batches:
            self.given += 1
            yield batch_of(self.epoch, self.given - 1, self.base)
        self.epoch, self.given = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.given = state["epoch"], state["given"]


class SizedStateful(Stateful):
    def __len__(self) -> int:
        return self.batches


def snapshot(batches: int = 5, base: float = 0) -> Loader:
    return resumable.wrap(Stateful(batches, base), identity="reader", seed=0)


def sized_snapshot(batches: int = 5, base: float = 0) -> Loader:
    return resumable.wrap(SizedStateful(batches, base), identity="reader", seed=0)


def replay(batches: int = 5, base: float = 0) -> Loader:
    def generate(epoch: int) -> Iterator[torch.Tensor]:
        for number in range(batches):
            yield batch_of(epoch, number, base)

    return resumable.wrap(generate, identity="generator", seed=0)


class Again:
    """A re-iterable object that is told the epoch."""

    epoch = 0

    def __init__(self, batches: int, base: float) -> None:
        self.batches, self.base = batches, base

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (batch_of(self.epoch, number, self.base) for number in range(self.batches))


def sized_replay(batches: int = 5, base: float = 0) -> Loader:
    return resumable.wrap(Again(batches, base), identity="again", seed=0)


MAKERS: dict[str, Callable[..., Any]] = {
    "indexed": indexed,
    "remembering": remembering,
    "snapshot": snapshot,
    "sized snapshot": sized_snapshot,
    "replay": replay,
    "sized replay": sized_replay,
}
SIZED = ("indexed", "remembering", "sized snapshot", "sized replay")


def validation() -> DataLoader[Any]:
    """Three batches of validation data, as most people give them: a plain DataLoader."""
    return DataLoader(torch.arange(6.0).reshape(-1, 1), batch_size=2)  # type: ignore[arg-type]  # a tensor is a dataset
