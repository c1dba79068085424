"""What a source is told before its samples are read: their indices, and the blocks that are read soon."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import resumable
from resumable import World
from resumable.protocols import Prefetching
from resumable.samplers import Blocks, Shuffle, Weighted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resumable.protocols import Upcoming

SIZES = [40, 7, 33, 20]
pytestmark = pytest.mark.filterwarnings("ignore:a window of .* blocks is small:resumable.errors.ShuffleWarning")


class Told:
    """A source that keeps what it is told, and draws from the generators when it is."""

    sizes = SIZES

    def __init__(self) -> None:
        self.told: list[tuple[list[int], Upcoming | None]] = []
        self.left: list[int] = []

    def __len__(self) -> int:
        return sum(SIZES)

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        assert self.left.pop(0) == index, "it was asked for another sample than it was told"
        return index, random.random(), float(np.random.random())

    def __getitems__(self, indices: list[int]) -> list[Any]:
        raise AssertionError("samples are asked for one by one, each with a randomness of its own")

    def resumable_prefetch(self, indices: Sequence[int], upcoming: Callable[[], Upcoming | None]) -> None:
        assert not self.left
        self.left = list(indices)
        self.told.append((list(indices), upcoming()))
        random.random()
        np.random.random(3)


class Plain:
    """The same samples of a source that is told nothing."""

    sizes = SIZES

    def __len__(self) -> int:
        return sum(SIZES)

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        return index, random.random(), float(np.random.random())


def in_blocks(source: Any, *, torch: bool, batch: int = 12, **options: Any) -> resumable.Loader[Any]:
    order = Blocks(SIZES, block=4, window=5, seed=1)
    if torch:
        return resumable.wrap(DataLoader(source, batch_size=batch, collate_fn=list), sampler=order, **options)
    return resumable.wrap(source, batch_size=batch, sampler=order, **options)


@pytest.mark.parametrize("torch", [True, False])
@pytest.mark.parametrize("randomness", ["sample", "batch"])
def test_being_told_changes_no_sample_and_no_randomness(torch: bool, randomness: Any) -> None:
    source = Told()
    assert isinstance(source, Prefetching)
    state = random.getstate()
    found = list(in_blocks(source, torch=torch, randomness=randomness).steps(30))
    assert random.getstate() == state
    assert found == list(in_blocks(Plain(), torch=torch, randomness=randomness).steps(30))
    assert [indices for indices, _ in source.told] == [[index for index, *_ in batch] for batch in found]


@pytest.mark.parametrize("tail", ["drop", "pad", "partial", "carry"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("batch", [3, 12, 30])
def test_all_blocks_of_a_window_are_told_before_it_begins(tail: Any, ranks: int, batch: int) -> None:
    """Over three epochs and their borders: no more is new at a border than what one batch needs itself."""
    source = Told()
    loader = in_blocks(source, torch=False, batch=batch, tail=tail, world=World(ranks - 1, ranks))
    list(loader.steps(3 * len(loader)))
    known = set[tuple[int, int]]()
    for number, (indices, blocks) in enumerate(source.told):
        assert blocks is not None
        here, soon = ({(first, stop) for first, stop in some.tolist()} for some in blocks)
        if tail != "pad" or (number + 1) % len(loader):  # else some only fill up the batch
            assert all(any(first <= index < stop for first, stop in here) for index in indices)
        assert len(here) <= 5 * (2 + batch * ranks // 12)
        assert not number or len(here - known) <= -(-batch * ranks // 4) + 2
        known = here | soon  # all else may have gone


def test_without_blocks_the_indices_are_told() -> None:
    weights = np.arange(1, 101)
    for sampler in (Shuffle(100, seed=1), Weighted(weights, seed=1), None):
        source = Told()
        found = list(resumable.wrap(source, batch_size=8, sampler=sampler).steps(20))
        assert [indices for indices, _ in source.told] == [[index for index, *_ in batch] for batch in found]
        assert {blocks is None for _, blocks in source.told} == {True}


def test_the_sources_of_a_mixture_are_told_their_own_indices() -> None:
    first, second = Told(), Told()
    mixed = resumable.mix({"a": first, "plain": Plain(), "b": second})
    batches = list(resumable.wrap(mixed, batch_size=12, seed=0).steps(20))
    told = [len(indices) for source in (first, second) for indices, _ in source.told]
    assert 0 < sum(told) < sum(map(len, batches))
    assert not first.left
    assert not second.left


def test_a_transform_hides_nothing() -> None:
    source = Told()
    list(resumable.wrap(source, batch_size=8, transform=str).steps(3))
    assert len(source.told) == 3
