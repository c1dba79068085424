"""ResumableSampler: which indices it gives, to which rank, in which epoch."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import resumable
from resumable import ResumableSampler, World
from resumable.errors import ConfigurationError
from resumable.samplers import Sequential, Shuffle, Subset, Weighted

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTH = 50


def ranks(world: int, batch_size: int, **options: Any) -> list[ResumableSampler]:
    return [ResumableSampler(LENGTH, world, rank, batch_size=batch_size, **options) for rank in range(world)]


def global_batches(samplers: list[ResumableSampler], batch_size: int) -> list[list[int]]:
    """Run a pass of every rank, and put the ranks' batches of each step one after the other."""
    parts = [list(sampler) for sampler in samplers]
    starts = range(0, len(parts[0]), batch_size)
    return [[index for part in parts for index in part[start : start + batch_size]] for start in starts]


def test_it_is_a_distributed_sampler() -> None:
    """It is a `DistributedSampler`, so trainers leave it in place."""
    sampler = ResumableSampler(range(LENGTH), 4, 1, seed=7, drop_last=True)
    assert isinstance(sampler, DistributedSampler)
    assert isinstance(sampler, torch.utils.data.Sampler)
    assert (sampler.num_replicas, sampler.rank, sampler.seed, sampler.shuffle) == (4, 1, 7, True)
    assert (sampler.epoch, sampler.drop_last, sampler.num_samples, sampler.total_size) == (0, True, 12, 48)
    assert len(sampler.dataset) == LENGTH  # type: ignore[arg-type]  # torch's Dataset has no length by type


def test_it_is_a_public_name() -> None:
    assert resumable.ResumableSampler is ResumableSampler


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_divides_like_distributed_sampler(world: int, drop_last: bool, shuffle: bool) -> None:
    """Without a batch size, it divides like `DistributedSampler`."""
    for rank in range(world):
        options: dict[str, Any] = {"num_replicas": world, "rank": rank, "shuffle": shuffle, "drop_last": drop_last}
        mine = ResumableSampler(range(LENGTH), **options)
        theirs: DistributedSampler[int] = DistributedSampler(range(LENGTH), **options)  # type: ignore[arg-type]  # only its length counts
        assert len(mine) == len(theirs) == len(list(mine))
        assert (mine.num_samples, mine.total_size) == (theirs.num_samples, theirs.total_size)
        if not shuffle:
            mine.set_epoch(0)
            assert list(mine) == list(theirs)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_global_batches_are_the_same_for_any_number_of_ranks(world: int, drop_last: bool) -> None:
    size = 12 // world
    samplers = ranks(world, size, drop_last=drop_last, seed=3)
    order = Shuffle(LENGTH, seed=3)
    for epoch in range(3):
        whole = order.indices(epoch, 0, LENGTH).tolist()
        padded = whole[:48] if drop_last else whole + whole[:10]
        assert global_batches(samplers, size) == [padded[i : i + 12] for i in range(0, len(padded), 12)]


@pytest.mark.parametrize("options", [{}, {"num_replicas": 3, "rank": 2, "batch_size": 4}, {"drop_last": True}])
def test_the_length_is_always_that_of_the_epoch(options: dict[str, Any]) -> None:
    sampler = ResumableSampler(LENGTH, **options)
    total = len(sampler)
    for index, _ in enumerate(sampler):
        assert len(sampler) == total
        if index == total // 2:
            state = sampler.state_dict()
    assert index + 1 == total
    sampler.load_state_dict(state)
    assert len(sampler) == total
    assert 0 < len(list(sampler)) < total == len(sampler)


def test_a_pass_after_a_complete_one_gives_the_next_epoch() -> None:
    sampler, order = ResumableSampler(LENGTH, seed=5), Shuffle(LENGTH, seed=5)
    for epoch in range(3):
        assert list(sampler) == order.indices(epoch, 0, LENGTH).tolist()
        assert sampler.epoch == epoch


def test_set_epoch_chooses_the_epoch() -> None:
    sampler, order = ResumableSampler(LENGTH), Shuffle(LENGTH)
    for epoch in (4, 4, 0, 9, 8):
        sampler.set_epoch(epoch)
        assert sampler.epoch == epoch
        assert list(sampler) == order.indices(epoch, 0, LENGTH).tolist()


def test_an_abandoned_pass_is_repeated() -> None:
    sampler = ResumableSampler(LENGTH)
    first = [index for index, _ in zip(sampler, range(7), strict=False)]
    assert list(sampler)[:7] == first
    assert sampler.epoch == 0


def test_an_iterator_that_is_thrown_away_changes_nothing() -> None:
    sampler = ResumableSampler(LENGTH)
    list(sampler)
    before = sampler.state_dict()
    iter(sampler)
    assert sampler.state_dict() == before
    assert sampler.epoch == 0


def test_the_iterator_of_an_older_pass_does_not_count() -> None:
    sampler = ResumableSampler(LENGTH)
    old = iter(sampler)
    next(old)
    sampler.set_epoch(1)
    next(old)
    assert sampler.state_dict()["cursor"] == {"epoch": 1, "position": 0, "step": 0}
    assert len(list(old)) == LENGTH - 2


@pytest.mark.parametrize("world", [2, 3])
def test_another_sampler_gives_the_order(world: int) -> None:
    order = Weighted([1, 0, 5], num_samples=30, seed=2)
    parts = [ResumableSampler(3, world, rank, sampler=order) for rank in range(world)]
    assert global_batches(parts, 1) == order.indices(0, 0, 30).reshape(-1, world).tolist()
    assert list(ResumableSampler(9, 1, 0, sampler=Subset([8, 7], Sequential(2)))) == [8, 7]


def test_long_data_and_large_worlds_cost_no_memory() -> None:
    sampler = ResumableSampler(10**12, 1024, 1000, batch_size=64)
    assert len(sampler) == -(-(10**12) // 65_536) * 64
    found = [index for index, _ in zip(sampler, range(128), strict=False)]
    order = Shuffle(10**12)
    second = 65_536 + 64_000
    assert found == [*order.indices(0, 64_000, 64_064).tolist(), *order.indices(0, second, second + 64).tolist()]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda sampler: pickle.loads(pickle.dumps(sampler))])  # noqa: S301  # our own bytes
def test_a_copy_has_a_place_of_its_own(copied: Callable[[ResumableSampler], ResumableSampler]) -> None:
    sampler = ResumableSampler(LENGTH)
    iterator = iter(sampler)
    next(iterator)
    other = copied(sampler)
    next(iterator)
    assert other.state_dict()["cursor"]["position"] == 1
    assert sampler.state_dict()["cursor"]["position"] == 2


# ---------------------------------------------------------------------- which rank


def test_the_world_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    sampler = ResumableSampler(LENGTH, batch_size=2)
    assert (sampler.rank, sampler.num_replicas) == (2, 3)
    assert list(sampler) == list(ResumableSampler(LENGTH, 3, 2, batch_size=2))


def test_rank_or_world_size_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of `rank` and `world_size` suffices if it is the detected one."""
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert ResumableSampler(LENGTH, num_replicas=3).rank == 2
    assert ResumableSampler(LENGTH, rank=2).num_replicas == 3
    with pytest.raises(ConfigurationError, match=r"num_replicas=4 and rank=None .* this process is rank 2 of 3"):
        ResumableSampler(LENGTH, num_replicas=4)
    with pytest.raises(ConfigurationError, match=r"num_replicas=None and rank=1 .* this process is rank 2 of 3"):
        ResumableSampler(LENGTH, rank=1)


def test_a_sampler_made_before_the_process_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, told = ResumableSampler(LENGTH), ResumableSampler(LENGTH, 1, 0)
    monkeypatch.setattr(World, "detect", classmethod(lambda cls: World(1, 2)))
    with pytest.raises(ConfigurationError, match="the sampler is for rank 0 of 1, but this process is now rank 1 of 2"):
        next(iter(sampler))
    assert len(list(told)) == LENGTH


# ---------------------------------------------------------------------- bad options


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"dataset_or_length": 0}, "the length of the data must be an integer of 1 or more, but it is 0"),
        ({"dataset_or_length": []}, "the length of the data must be an integer of 1 or more, but it is 0"),
        ({"dataset_or_length": 2.5}, "but it is 2.5"),
        ({"num_replicas": 2, "rank": 2}, "rank=2 and size=2"),
        ({"num_replicas": 2, "rank": -1}, "rank=-1 and size=2"),
        ({"seed": -3}, "but it is -3"),
        ({"seed": 1.5}, "but it is 1.5"),
        ({"batch_size": 0}, "but it is 0"),
        ({"batch_size": 51, "drop_last": True}, "51 samples per step, 50 samples per epoch"),
        ({"sampler": Sequential(9), "seed": 4}, "sampler=Sequential(length=9) was passed together with seed=4"),
        ({"sampler": Sequential(9), "shuffle": False}, "and shuffle=False"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ResumableSampler(**{"dataset_or_length": LENGTH, **options})
    assert told in str(caught.value)


@pytest.mark.parametrize("epoch", [-1, -7])
def test_a_negative_epoch_is_refused(epoch: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"set_epoch\({epoch}\) was called"):
        ResumableSampler(LENGTH).set_epoch(epoch)


def test_the_representation_names_what_counts() -> None:
    text = repr(ResumableSampler(LENGTH, 4, 1, seed=7, batch_size=3))
    assert text == (
        "ResumableSampler(Shuffle(50, seed=7, num_samples=50), num_replicas=4, rank=1, batch_size=3, drop_last=False)"
    )


def test_in_a_data_loader() -> None:
    dataset = TensorDataset(torch.arange(LENGTH))
    sampler = ResumableSampler(dataset, 1, 0, batch_size=8, drop_last=True)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    assert len(loader) == 6
    assert [batch.tolist() for (batch,) in loader] == Shuffle(LENGTH).indices(0, 0, 48).reshape(6, 8).tolist()
