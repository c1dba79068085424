"""Sources as people write them: a dataset, a sampler, and readers with and without a state."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, default_collate, get_worker_info

from .augmentation import sample
from .digits import BATCH_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .digits import Digits

__all__ = [
    "DigitsDataset",
    "DigitsReader",
    "DigitsStream",
    "EachClassInTurn",
    "StatefulDigitsStream",
    "shuffled_batches",
]

_BUFFER = 32


class DigitsDataset(Dataset[tuple[torch.Tensor, int]]):
    """A map-style dataset that augments in `__getitem__`."""

    def __init__(self, digits: Digits) -> None:
        self._digits = digits

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._digits.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return sample(self._digits, index)


class EachClassInTurn(Sampler[int]):
    """A custom sampler: shuffles within each class, and takes one image of each class in turn.

    It uses torch's global RNG, does not know the epoch, and has no state.
    """

    def __init__(self, labels: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        self._classes = [torch.from_numpy(indices) for indices in classes]
        self._rounds = min(map(len, classes))

    def __len__(self) -> int:
        """Return the number of images in an epoch."""
        return self._rounds * len(self._classes)

    def __iter__(self) -> Iterator[int]:
        """Yield the order of an epoch."""
        shuffled = [indices[torch.randperm(len(indices))][: self._rounds] for indices in self._classes]
        yield from torch.stack(shuffled, dim=1).flatten().tolist()


def shuffled_batches(digits: Digits, epoch: int) -> Iterator[Any]:
    """Generate the batches of an epoch, in an order that depends on the epoch."""
    order = np.random.default_rng(epoch).permutation(len(digits.labels))
    for start in range(0, len(order), BATCH_SIZE):
        yield default_collate([sample(digits, int(index)) for index in order[start : start + BATCH_SIZE]])


class DigitsStream(IterableDataset[tuple[torch.Tensor, int]]):
    """An iterable-style dataset: each worker reads its share from start to end, through a shuffle buffer."""

    def __init__(self, digits: Digits) -> None:
        self._digits = digits
        self._buffer: list[int] = []
        self._read = 0

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        """Start an epoch."""
        self._buffer, self._read = [], 0
        return self._samples()

    def _samples(self) -> Iterator[tuple[torch.Tensor, int]]:
        info, count = get_worker_info(), len(self._digits.labels)
        share = range(count) if info is None else range(info.id, count, info.num_workers)
        while self._fill(share):
            yield sample(self._digits, self._buffer.pop(random.randrange(len(self._buffer))))

    def _fill(self, share: range) -> bool:
        stop = min(self._read + _BUFFER - len(self._buffer), len(share))
        self._buffer += share[self._read : stop]
        self._read = stop
        return bool(self._buffer)


class StatefulDigitsStream(DigitsStream):
    """The same with a state: the content of the buffer, and how much of the share was read."""

    def __init__(self, digits: Digits) -> None:
        super().__init__(digits)
        self._loaded = False

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        """Start an epoch, or continue from a state."""
        if not self._loaded:
            return super().__iter__()
        self._loaded = False
        return self._samples()

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last sample."""
        return {"buffer": list(self._buffer), "read": self._read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next `iter()` continue from a state."""
        self._buffer, self._read, self._loaded = list(state["buffer"]), state["read"], True


class DigitsReader:
    """A reader that is not a torch dataset, with its own RNG for the order, which is part of its state."""

    def __init__(self, digits: Digits) -> None:
        self._digits = digits
        self._generator = np.random.default_rng(0)
        self._begun = self._generator.bit_generator.state  # the RNG at the start of the epoch
        self._given = 0

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        """Yield the rest of the epoch."""
        self._generator.bit_generator.state = self._begun
        order = self._generator.permutation(len(self._digits.labels))
        while self._given < len(order):
            self._given += 1
            yield sample(self._digits, int(order[self._given - 1]))
        self._begun, self._given = self._generator.bit_generator.state, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the RNG at the start of the epoch, and how many samples were yielded since."""
        return {"generator": self._begun, "given": self._given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next `iter()` continue from a state."""
        self._begun, self._given = state["generator"], state["given"]
