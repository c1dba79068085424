"""A dataset that grows and a sampler of PyTorch's that the loop changes: the next epoch starts with a warning."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from lightning.fabric.utilities.data import _replace_dunder_methods
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import resumable
from resumable import ResumableSampler
from resumable.errors import PromiseWarning

if TYPE_CHECKING:
    from collections.abc import Callable


class Pool(Dataset[Any]):
    """The samples that an actor has collected so far."""

    def __init__(self) -> None:
        self.found = list(range(24))

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, index: int) -> int:
        return self.found[index]


def told(loader: resumable.Loader[Any], change: Callable[[], Any], epochs: int = 3) -> list[list[str]]:
    """Return the warnings of each epoch, with a change in its middle."""
    found = []
    for epoch in loader.epochs(epochs):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step, _ in enumerate(epoch):
                if step == 1 and epoch.number == 0:
                    change()
        assert all(one.category is PromiseWarning for one in caught)
        found.append([str(one.message) for one in caught])
    return found


@pytest.mark.parametrize("kind", ["DataLoader", "sequence"])
def test_dataset_that_grows(kind: str) -> None:
    pool = Pool()
    loader = (
        resumable.wrap(DataLoader(pool, batch_size=4, shuffle=True), seed=0)
        if kind == "DataLoader"
        else resumable.wrap(pool, batch_size=4, seed=0)
    )
    first, second, third = told(loader, lambda: pool.found.append(1))
    assert (first, len(second), third) == ([], 1, [])
    assert "samples of Pool has changed" in second[0]
    assert "then: 24\n  now:  25\n" in second[0]


def test_a_list_that_grows() -> None:
    data = list(range(24))
    loader = resumable.wrap(data, batch_size=4, seed=0)
    assert [len(one) for one in told(loader, lambda: data.extend(range(4)))] == [0, 1, 0]


def weighted() -> tuple[DataLoader[Any], Callable[[], Any]]:
    sampler = WeightedRandomSampler([1.0] * 24, 24)
    return DataLoader(Pool(), batch_size=4, sampler=sampler), lambda: sampler.weights.__setitem__(3, 9.0)


def reweighted() -> tuple[DataLoader[Any], Callable[[], Any]]:
    sampler = WeightedRandomSampler([1.0] * 24, 24)
    return DataLoader(Pool(), batch_size=4, sampler=sampler), lambda: setattr(sampler, "weights", torch.ones(24))


def active() -> tuple[DataLoader[Any], Callable[[], Any]]:
    sampler = SubsetRandomSampler(list(range(12)))
    return DataLoader(Pool(), batch_size=4, sampler=sampler), lambda: sampler.indices.append(20)  # type: ignore[attr-defined]


def larger_batches() -> tuple[DataLoader[Any], Callable[[], Any]]:
    loader = DataLoader(Pool(), batch_size=4, shuffle=True)
    return loader, lambda: setattr(loader.batch_sampler, "batch_size", 8)


@pytest.mark.parametrize("make", [weighted, reweighted, active, larger_batches])
def test_sampler_of_pytorch(make: Callable[[], Any]) -> None:
    loader, change = make()
    first, second, third = told(resumable.wrap(loader, seed=0), change)
    changed = [text for text in second if "of the DataLoader's batch sampler was changed" in text]
    assert (first, second, third) == ([], changed, [])
    assert len(changed) == 1


def test_records_of_a_framework_are_not_changes() -> None:
    """Lightning notes in `__pl_attrs_record` which attributes of a batch sampler are set."""
    with _replace_dunder_methods(BatchSampler):
        test_sampler_of_pytorch(larger_batches)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("sampler", [DistributedSampler, RandomSampler, ResumableSampler])
def test_right_programs(sampler: Any) -> None:
    """`set_epoch`, a replaced generator, and a dataset changed in place cause no warning."""
    data = TensorDataset(torch.arange(24))
    order = sampler(data, **({} if sampler is RandomSampler else {"num_replicas": 1, "rank": 0}))
    loader = resumable.wrap(DataLoader(data, batch_size=4, sampler=order), seed=0)
    for epoch in loader.epochs(3):
        if sampler is RandomSampler:
            order.generator = torch.Generator().manual_seed(epoch.number)
        else:
            order.set_epoch(epoch.number)
        for _ in epoch:
            data.tensors[0][0] += 1
            assert len(list(order)) == 24
