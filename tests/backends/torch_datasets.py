"""Datasets for the tests of the torch backends: small, and random in every way that augmentation is."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

if TYPE_CHECKING:
    from collections.abc import Iterator

Sample = tuple[int, float, float, float]


def augmented(index: int) -> Sample:
    return index, random.random(), float(np.random.randn()), torch.rand(()).item()


class Augmented(Dataset[Sample]):
    """Map-style; `broken` raises, `hang` or `die` happen in a worker."""

    def __init__(self, length: int = 23, broken: int | None = None) -> None:
        self.length, self.broken = length, broken

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        if index == self.broken:
            raise OSError("torn file")
        return augmented(index)


class Together(Augmented):
    """Reads whole batches."""

    def __getitems__(self, indices: list[int]) -> list[Sample]:
        return [augmented(index) for index in indices]


def span(worker_length: tuple[int, ...] = (11, 17)) -> tuple[int, int]:
    """The worker's part: of another length in each worker, so that workers end at different times."""
    info = get_worker_info()
    number = 0 if info is None else info.id
    return number * 1000, number * 1000 + worker_length[number % len(worker_length)]


class Stream(IterableDataset[Sample]):
    """Iterable-style, without a state; told the epoch."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Sample]:
        return (augmented(self.epoch * 10000 + index) for index in range(*span()))


class StatefulStream(IterableDataset[Sample]):
    """Iterable-style, with a state that goes on over epochs where the object lives on."""

    def __init__(self) -> None:
        self.index, self.laps = 0, 0

    def state_dict(self) -> dict[str, Any]:
        return {"index": self.index, "laps": torch.tensor(self.laps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.index, self.laps = state["index"], int(state["laps"])

    def __iter__(self) -> Iterator[Sample]:
        start, stop = span()
        while start + self.index < stop:
            self.index += 1
            yield augmented(self.laps * 10000 + start + self.index)
        self.index = 0
        self.laps += 1


class OwnOrder(Sampler[int]):
    """Draws from torch's global generator, and gives another order in each epoch by its own memory."""

    def __init__(self, length: int = 20) -> None:
        self.length = length
        self.generator = torch.Generator().manual_seed(5)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        ours = torch.randperm(self.length, generator=self.generator)
        return iter(ours[torch.randperm(self.length)].tolist())


class EpochOrder(OwnOrder):
    """Told the epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng(self.epoch).permutation(self.length).tolist())


class StatefulOrder(Sampler[int]):
    """With a state."""

    def __init__(self, length: int = 20) -> None:
        self.length, self.index, self.laps = length, 0, 0

    def state_dict(self) -> dict[str, int]:
        return {"index": self.index, "laps": self.laps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.index, self.laps = state["index"], state["laps"]

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng(self.laps).permutation(self.length).tolist()
        while self.index < self.length:
            self.index += 1
            yield order[self.index - 1]
        self.index = 0
        self.laps += 1


class OwnBatches(Sampler[list[int]]):
    """A batch sampler with batches of different sizes."""

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(21).tolist()
        return iter([order[start * (start + 1) // 2 : (start + 1) * (start + 2) // 2] for start in range(6)])


class EagerStream(IterableDataset[int]):
    """Iterable-style, without a state; draws its whole order when it is opened, not while it is read."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(12).tolist())


class EpochInState(IterableDataset[Sample]):
    """Told the epoch, with the epoch in its state, and standing at its end until it is told another epoch."""

    def __init__(self) -> None:
        self.epoch, self.index = 0, 0

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.index = epoch, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "index": self.index}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.index = state["epoch"], state["index"]

    def __iter__(self) -> Iterator[Sample]:
        start, stop = span((6, 9))
        while start + self.index < stop:
            self.index += 1
            yield augmented(self.epoch * 10000 + start + self.index)
