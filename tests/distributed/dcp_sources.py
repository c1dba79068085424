"""Loaders of each kind that several ranks save by `torch.distributed.checkpoint`, and the stream that each gives."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import resumable
from resumable import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["GLOBAL_BATCH", "LOADERS", "OWN", "rest", "run_of"]

SAMPLES, GLOBAL_BATCH = 60, 12
EPOCHS = 3


class Squares(Dataset[torch.Tensor]):
    """Map-style, with augmentation."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index * index, random.randrange(1 << 20)])  # an augmentation


class Counted:
    """The same whole stream on each rank, with a state."""

    def __init__(self, first: int = 0, length: int = SAMPLES) -> None:
        self.first, self.length, self.at = first, length, 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.length:
            self.at += 1
            yield self.first + self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Buffered(IterableDataset[int]):
    """A stream of its own on each rank, with a buffer that grows and shrinks, of dicts, which DCP takes apart."""

    def __init__(self, first: int) -> None:
        self.first, self.at = first, 0
        self.buffer: list[dict[str, Any]] = []

    def __iter__(self) -> Iterator[int]:
        while self.at < SAMPLES or self.buffer:
            while self.at < SAMPLES and len(self.buffer) < 1 + self.at % 5:
                self.buffer.append({"value": torch.tensor(self.first + self.at)})
                self.at += 1
            yield int(self.buffer.pop(self.at % len(self.buffer))["value"])
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "buffer": [dict(one) for one in self.buffer], "width": {len(self.buffer): True}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.buffer = state["at"], [dict(one) for one in state["buffer"]]


def _own(world: World) -> dict[str, Any]:
    return {"batch_size": GLOBAL_BATCH // world.size, "shard": False, "tail": "drop", "seed": 0, "world": world}


def _shared(world: World) -> dict[str, Any]:
    return {"batch_size": GLOBAL_BATCH // world.size, "tail": "drop", "seed": 0, "world": world}


LOADERS: dict[str, Callable[[World], resumable.Loader[Any]]] = {
    "list": lambda world: resumable.wrap(
        list(range(SAMPLES)), batch_size=GLOBAL_BATCH // world.size, shuffle=True, seed=3, world=world
    ),
    "dataset": lambda world: resumable.wrap(
        DataLoader(Squares(), batch_size=GLOBAL_BATCH // world.size, shuffle=True), seed=3, world=world
    ),
    "function": lambda world: resumable.wrap(lambda: iter(range(SAMPLES)), identity="numbers", **_shared(world)),
    "shared": lambda world: resumable.wrap(Counted(), **_shared(world)),
    # Each rank has a stream of its own.
    "own": lambda world: resumable.wrap(Counted(1000 * world.rank), **_own(world)),
    "growing": lambda world: resumable.wrap(Buffered(1000 * world.rank), **_own(world)),
    "replayed": lambda world: resumable.wrap(
        lambda: iter(range(1000 * world.rank, 1000 * world.rank + SAMPLES)), identity="own", **_own(world)
    ),
}
OWN = ("own", "growing", "replayed")


def rest(loader: resumable.Loader[Any]) -> list[Any]:
    """Return all that a loader gives to the end of the last epoch, as plain values."""
    return [torch.as_tensor(batch).tolist() for epoch in loader.epochs(EPOCHS) for batch in epoch]


def run_of(name: str, size: int) -> list[list[Any]]:
    """Return what each of so many ranks gets, uninterrupted."""
    return [rest(LOADERS[name](World(rank, size))) for rank in range(size)]
