"""Datasets and samplers that do not say how many there are, or ask for something else than numbers.

Run as a script, it continues from states that another process has saved: `python unsized_data.py WORKERS` reads them as
JSON, a list for each case, and writes the batches that are left after each.
"""

from __future__ import annotations

import json
import random
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import resumable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EPOCHS = 2


class Speech(Dataset[Any]):
    """Reads whatever it is asked for, and has no length."""

    def __getitem__(self, asked: Any) -> Any:
        return f"{asked} {random.random()}"  # which belongs to the sample


class Rows(Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(()).item()


class LengthRaises(Rows):
    def __len__(self) -> int:
        raise RuntimeError("not downloaded")


class Empty(Rows):
    """Says that it is empty, as its length is of no use to its sampler."""

    def __len__(self) -> int:
        return 0


class Sized(Rows):
    def __len__(self) -> int:
        return 9


class Cuts(Sampler[Any]):
    """Gives lists of cuts, as lhotse's do."""

    def __iter__(self) -> Iterator[Any]:
        yield from (["a", "b"], ["c"], ["d", "e"], ["f"])


class Refilled(Sampler[Any]):
    """Fills the same list, array and dict again and again."""

    def __iter__(self) -> Iterator[Any]:
        names: list[str] = []
        for name in "abcde":
            names.append(name)
            if len(names) == 2:
                yield names
                names.clear()
        yield names
        array, named = np.zeros(2), dict[str, int]()
        for number in range(3):
            array[:] = number
            yield array
            named["number"] = number
            yield named


class Names(Sampler[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from ("one", "two", "three", "four", "five")


class Cut(NamedTuple):
    shard: str
    row: int


class Tuples(Sampler[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from (Cut("a", 1), ("b", 2), Cut("c", 3), ("d", 4), (5, None))


class Shuffled(Sampler[Any]):
    """A different order in each epoch, which `set_epoch` selects."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(self.epoch)
        yield from torch.randperm(7, generator=generator).tolist()


class Drawn(Sampler[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from torch.randperm(7).tolist()

    def __len__(self) -> int:
        raise NotImplementedError("unknown")


class Stateful(Sampler[Any]):
    def __init__(self) -> None:
        self.here, self.epoch = 0, 0

    def __iter__(self) -> Iterator[Any]:
        while self.here < 7:
            self.here += 1
            yield [f"cut {self.epoch}-{self.here}"]
        self.here, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, int]:
        return {"here": self.here, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.here, self.epoch = state["here"], state["epoch"]


class Dynamic(Sampler[Any]):
    """Batches of any size, as PyG's DynamicBatchSampler, whose length raises."""

    error: type[Exception] | None = ValueError

    def __iter__(self) -> Iterator[Any]:
        yield from ([0, 1], [2], [3, 4, 5], (6,), np.array([7, 8]))

    def __len__(self) -> int:
        assert self.error is not None
        raise self.error("The length is undefined since the number of steps per epoch is ambiguous.")


class DynamicOddly(Dynamic):
    error = ZeroDivisionError


class DynamicWithout(Sampler[Any]):
    __iter__ = Dynamic.__iter__


class Walk(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        yield from range(0 if info is None else info.id, 9, 1 if info is None else info.num_workers)


class WalkRaises(Walk):
    def __len__(self) -> int:
        raise ValueError("ambiguous")


class WalkRaisesOddly(Walk):
    def __len__(self) -> int:
        raise ZeroDivisionError


def load(dataset: Any, batch_size: int | None = 2, **options: Any) -> Callable[[int], DataLoader[Any]]:
    def make(workers: int) -> DataLoader[Any]:
        made = {name: option() if callable(option) else option for name, option in options.items()}
        size: Any = {} if "batch_sampler" in made else {"batch_size": batch_size}
        return DataLoader(dataset(), **size, **made, num_workers=workers)

    return make


class Case(NamedTuple):
    make: Callable[[int], DataLoader[Any]]
    samples: int | None  # in an epoch, in our order; None if the order is PyTorch's
    sized: bool = False


NINE = range(9)
CASES = {
    "lists of cuts": Case(load(Speech, None, sampler=Cuts), None),
    "lists that are filled again": Case(load(Speech, None, sampler=Refilled), None),
    "names": Case(load(Speech, sampler=Names), None),
    "names, one by one": Case(load(Speech, None, sampler=Names), None),
    "tuples": Case(load(Speech, sampler=Tuples), None),
    "shuffled by the epoch": Case(load(Speech, 3, sampler=Shuffled), None),
    "shuffled by PyTorch's generator": Case(load(Rows, 3, sampler=Drawn), 7),
    "a sampler with a state": Case(load(Speech, None, sampler=Stateful), None),
    "a batch sampler whose length raises": Case(load(Sized, batch_sampler=Dynamic), None),
    "a batch sampler whose length raises oddly": Case(load(Sized, batch_sampler=DynamicOddly), None),
    "a batch sampler without a length": Case(load(Sized, batch_sampler=DynamicWithout), None),
    "neither has a length": Case(load(Rows, batch_sampler=DynamicWithout), None),
    "both lengths raise": Case(load(LengthRaises, batch_sampler=Dynamic), None),
    "PyTorch's batches of a sampler without a length": Case(
        load(Rows, batch_sampler=lambda: BatchSampler(Drawn(), 2, drop_last=True)), 6
    ),
    "a dataset whose length raises": Case(load(LengthRaises, sampler=lambda: list(range(5))), None, sized=True),
    "a dataset that says that it is empty": Case(load(Empty, sampler=lambda: list(range(5))), None, sized=True),
    "SequentialSampler": Case(load(Rows, sampler=lambda: SequentialSampler(NINE)), None, sized=True),
    "RandomSampler": Case(load(Rows, sampler=lambda: RandomSampler(NINE)), 9, sized=True),
    "RandomSampler, some": Case(load(LengthRaises, sampler=lambda: RandomSampler(NINE, num_samples=4)), 4, sized=True),
    "DistributedSampler": Case(load(Rows, sampler=lambda: DistributedSampler(NINE, 1, 0)), 9, sized=True),  # type: ignore[arg-type]  # only its length is asked for
    "SubsetRandomSampler": Case(load(Rows, sampler=lambda: SubsetRandomSampler([5, 2, 7])), 3, sized=True),
    "SubsetRandomSampler of names": Case(
        load(Speech, sampler=lambda: SubsetRandomSampler(["a", "b", "c"])),  # type: ignore[list-item]  # as scripts do
        3,
        sized=True,
    ),
    "WeightedRandomSampler": Case(load(Rows, sampler=lambda: WeightedRandomSampler([1, 2, 3], 6)), 6, sized=True),
    "WeightedRandomSampler, each once": Case(
        load(Rows, sampler=lambda: WeightedRandomSampler([1, 2, 3], 3, replacement=False)), 3, sized=True
    ),
    "an IterableDataset whose length raises": Case(load(WalkRaises), None),
    "an IterableDataset whose length raises oddly": Case(load(WalkRaisesOddly), None),
}


def plain(batch: Any) -> Any:
    """Return a batch as JSON has it."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return batch.tolist()
    return [plain(part) for part in batch] if isinstance(batch, (list, tuple)) else batch


def asked_for(batch: Any) -> Any:
    """Return the indices of a batch, without its random numbers."""
    if isinstance(batch, str):
        return batch.rpartition(" ")[0]
    if isinstance(batch, list) and len(batch) == 2 and isinstance(batch[1], list) and batch[1] and batch[0] != batch[1]:
        return batch[0] if isinstance(batch[1][0], float) else list(map(asked_for, batch))
    return list(map(asked_for, batch)) if isinstance(batch, list) else batch


def left_after(state: dict[str, Any], case: str, workers: int) -> list[Any]:
    """Return the batches that are left of all epochs."""
    loader = resumable.wrap(CASES[case].make(workers), seed=3)
    loader.load_state_dict(state)
    return [plain(batch) for epoch in loader.epochs(EPOCHS) for batch in epoch]


if __name__ == "__main__":
    saved = json.load(sys.stdin)
    left = {case: [left_after(one, case, int(sys.argv[1])) for one in states] for case, states in saved.items()}
    json.dump(left, sys.stdout)
