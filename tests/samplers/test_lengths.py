"""A sampler made for another number of samples is rejected where `wrap` sees both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, Dataset

import resumable
from resumable import ResumableSampler
from resumable.errors import ConfigurationError
from resumable.samplers import Blocks, Mixture, PagedShuffle, Sequential, Shuffle, Subset, Uniform, Weighted

DATA = list(range(100))
WRONG = [
    *(kind(length) for kind in (Blocks, Shuffle, Sequential, Uniform) for length in (90, 101)),
    Shuffle(90, num_samples=100),
    Uniform(101, num_samples=100),
    Blocks([30, 30, 39]),
    Weighted([1.0] * 99, num_samples=100),
    Weighted([1.0] * 101),
    Mixture({"a": 50, "b": 40}),
    Mixture({"a": 50, "b": 60}, num_samples=64),
    PagedShuffle([0] * 50 + [1] * 49, window=2),
]
RIGHT = [
    Blocks(100),
    Blocks([30, 30, 40]),
    Shuffle(100, num_samples=50),
    Uniform(100, num_samples=300),
    Weighted([1.0] * 100, num_samples=10),
    Mixture({"a": 50, "b": 50}, window=10),
    PagedShuffle([0] * 50 + [1] * 50, window=2),
    Subset([3, 99], Sequential(2)),
    Subset(range(90), Shuffle(90, num_samples=30)),
    Subset(range(90), Subset([5, 7], Shuffle(2))),
]


class Numbered(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return int(index)


def wrapped(sampler: Any, how: str) -> Any:
    if how == "sequence":
        return resumable.wrap(DATA, batch_size=10, sampler=sampler)
    if how == "array":
        return resumable.wrap(np.arange(100), batch_size=10, sampler=sampler)
    if how == "ResumableSampler":
        return DataLoader(DATA, batch_size=10, sampler=ResumableSampler(DATA, sampler=sampler))  # type: ignore[arg-type]
    return resumable.wrap(DataLoader(DATA, batch_size=10), sampler=sampler)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["sequence", "array", "DataLoader", "ResumableSampler"])
@pytest.mark.parametrize("sampler", WRONG, ids=repr)
def test_a_sampler_of_other_data_is_rejected(sampler: Any, how: str) -> None:
    with pytest.raises(ConfigurationError, match=r"was made for \d+ samples, but the data has 100\.(.|\n)*Subset"):
        wrapped(sampler, how)


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (Subset([3, 200], Sequential(2)), "the largest index of the subset is 200, but the data has 100 samples"),
        (Subset(range(100), Shuffle(90)), "was made for 90 samples, but the subset has 100"),
        (Subset([1, 2], Sequential(3)), "was made for 3 samples, but the subset has 2"),
        (Subset([1, 2], Subset([0, 2], Sequential(2))), "the largest index of the subset is 2, but the subset has 2"),
    ],
)
def test_a_subset_of_other_data_is_rejected(sampler: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        wrapped(sampler, "sequence")


@pytest.mark.parametrize("how", ["sequence", "array", "DataLoader", "ResumableSampler"])
@pytest.mark.parametrize("sampler", RIGHT, ids=repr)
def test_a_sampler_of_the_data_is_read(sampler: Any, how: str) -> None:
    assert len(list(wrapped(sampler, how))) == -(-sampler.length // 10)


def test_data_of_unknown_length_takes_any_sampler() -> None:
    loader = resumable.wrap(DataLoader(Numbered(), batch_size=10, sampler=DATA), sampler=Shuffle(90, num_samples=50))
    assert len(list(loader)) == 5


def test_a_sampler_without_data_length_is_not_judged() -> None:
    class Backwards:
        length = 90

        def indices(self, epoch: int, start: int, stop: int) -> Any:  # of the protocol
            return 99 - np.arange(start, stop)

        def spec(self) -> dict[str, int | str]:
            return {"name": "backwards-v1", "length": 90}

    assert len(list(resumable.wrap(DATA, batch_size=10, sampler=Backwards()))) == 9
