"""`resumable.check` finds datasets whose samples depend on what was read before."""

from __future__ import annotations

import random
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

import resumable


class Mosaic(Dataset[Any]):
    """Mixes a sample with one that was read recently."""

    def __init__(self) -> None:
        self.recent: list[int] = []

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> list[int]:
        self.recent = [*self.recent, index][-8:]
        return [index, random.choice(self.recent)]


class SmartCache(Mosaic):
    """Keeps the first augmentation of each sample."""

    def __init__(self) -> None:
        self.cache: dict[int, float] = {}

    def __getitem__(self, index: int) -> Any:
        return index + self.cache.setdefault(index, random.random())


class Grows(Mosaic):
    """Selects from a list, and adds to it."""

    def __init__(self) -> None:
        self.pool = list(range(24))

    def __getitem__(self, index: int) -> Any:
        self.pool.append(100 + self.pool[index])
        return random.choice(self.pool)


def loader_of(dataset: Any) -> resumable.Loader[Any]:
    return resumable.wrap(DataLoader(dataset, batch_size=4, shuffle=True), seed=0)


@pytest.mark.filterwarnings("ignore:this Loader has the same data and seed")
@pytest.mark.parametrize("kind", [Mosaic, SmartCache, Grows])
def test_memory(kind: Any) -> None:
    report = resumable.check(lambda: loader_of(kind()), seconds=8)
    broken = [one for one in report.loaders[0].trials if one.kept is False]
    assert "depends on earlier reads in the same process" in broken[0].cause


@pytest.mark.filterwarnings("ignore:this Loader has the same data and seed")
@pytest.mark.parametrize("kind", [Mosaic, Grows])
def test_memory_outside_the_function(kind: Any) -> None:
    shared = kind()
    first = resumable.check(lambda: loader_of(shared), seconds=8).loaders[0].trials[0]
    assert first.kept is False
    assert "depend on earlier reads" in first.cause or "depend on a counter or cache" in first.cause
