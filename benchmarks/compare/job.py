"""The job that every library does: read the same samples for three epochs, in batches of 8, with augmentation."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["BATCH", "EPOCHS", "SAMPLES", "Images", "Job", "Setting", "Stream", "augmented", "numbers", "seed_all"]

SAMPLES, GROWN, BATCH, EPOCHS = 192, 256, 8, 3


@dataclass(frozen=True)
class Setting:
    """Options of a script, which may change between its runs.

    Args:
        workers: worker processes.
        batch: samples per batch of a rank.
        seed: of the script.
        data: "files", "reordered files" (the same ones), "more files", or "stream", an `IterableDataset`.
        shuffle: whether the script shuffles.
        rank: of this process.
        ranks: their number.
        distributed: whether the script is for several ranks, though it may run on one.
    """

    workers: int = 0
    batch: int = BATCH
    seed: int = 0
    data: str = "files"
    shuffle: bool = True
    rank: int = 0
    ranks: int = 1
    distributed: bool = False


class Job:
    """A script: how it makes its loader, what it loops over, and what it saves.

    Args:
        setting: what it was started with.
        folder: an empty folder for files of this run.
    """

    loader: Any

    def __init__(self, setting: Setting, folder: str) -> None:
        raise NotImplementedError

    def loops(self, first: int, step: int) -> Iterator[Iterable[Any]]:
        """Yield what each inner loop reads, from epoch `first` on; the script had read `step` batches of it."""
        del step
        for epoch in range(first, EPOCHS):
            self.begin(epoch)
            yield self.loader

    def begin(self, epoch: int) -> None:
        """Do what a script must do before each epoch."""

    def state(self) -> Any:
        """Return what the script saves of its loader."""
        return self.loader.state_dict()

    def load(self, state: Any) -> None:
        """Load what was saved."""
        self.loader.load_state_dict(state)

    def load_ranks(self, states: list[Any], setting: Setting) -> None:
        """Load the state of this rank, or of rank 0 if there were more or fewer ranks."""
        self.load(states[setting.rank if len(states) == setting.ranks else 0])


def seed_all(seed: int) -> None:
    """Seed all generators, as scripts do when they start."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # which augmentations use
    torch.manual_seed(seed)


def numbers(data: str) -> list[int]:
    """Return the samples of a data set: distinct numbers."""
    generator = np.random.default_rng(1)
    found = generator.permutation(1000)[: GROWN if data == "more files" else SAMPLES]
    made: list[int] = (generator.permutation(found) if data == "reordered files" else found).tolist()
    return made


def augmented(number: int, own: float = 0.0) -> Any:
    """Return a sample: its number, one from each global generator, and one from the library's own, if it has one."""
    noise = random.random(), np.random.rand(), float(torch.rand(1))  # noqa: NPY002  # as augmentations do
    return np.array([number, *noise, own])


class Images(Dataset[Any]):
    """The samples by index."""

    def __init__(self, data: str) -> None:
        self.numbers = numbers(data)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Any:
        return augmented(self.numbers[index])


class Stream(IterableDataset[Any]):
    """The samples one after another, divided among the workers."""

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for number in numbers("stream")[first::step]:
            yield augmented(number)
