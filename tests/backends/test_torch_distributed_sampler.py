"""In place of a `DistributedSampler`: torch's number of samples and batches per rank, and a way for older states."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

import resumable
from resumable import World
from resumable._order.plan import Padding
from resumable.backends.torch.orders import kind_of
from resumable.errors import ConfigurationError, StateMismatchError


def make(length: int, batch_size: int, world: World, drops: tuple[bool, bool]) -> DataLoader[Any]:
    """`drops` is `drop_last` of the sampler, and of the loader."""
    samples: Any = Recorded(length)
    order: Any = DistributedSampler(samples, world.size, world.rank, drop_last=drops[0])
    return DataLoader(samples, batch_size=batch_size, sampler=order, drop_last=drops[1])


class Recorded:
    """Gives the index, and whether it only fills up."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[int, bool]:
        return int(index), isinstance(index, Padding)


def sizes(batches: Any) -> list[int]:
    return [len(batch[0]) for batch in batches]


DROPS = [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.slow
@pytest.mark.parametrize("drops", DROPS)
def test_ranks_get_as_many_batches_and_samples_as_with_torch(drops: tuple[bool, bool]) -> None:
    for length, batch_size, ranks in product((1, 7, 10, 23, 24, 25), (1, 3, 32), (1, 2, 4)):
        raw = [make(length, batch_size, World(rank, ranks), drops) for rank in range(ranks)]
        plain = [sizes(one) for one in raw]
        if not plain[0]:
            with pytest.raises(ConfigurationError, match="an epoch could have no batch|no batch at all"):
                next(iter(resumable.wrap(raw[0])))
            continue
        ours = [[list(epoch) for epoch in resumable.wrap(one).epochs(2)] for one in raw]
        for epoch in range(2):
            assert [sizes(rank[epoch]) for rank in ours] == plain, (length, batch_size, ranks)
            seen = [pair for rank in ours for batch in rank[epoch] for pair in zip(*batch, strict=True)]
            real = [int(index) for index, fills in seen if not fills]
            assert len(real) == len(set(real))
            assert len(seen) - len(real) < ranks
            if not any(drops):
                assert sorted(real) == list(range(length))


@pytest.mark.parametrize("drops", DROPS)
def test_a_resume_at_every_step_goes_on_exactly(drops: tuple[bool, bool]) -> None:
    def loader() -> resumable.Loader[Any]:
        return resumable.wrap(make(23, 4, World(1, 2), drops), seed=5)

    def rest(one: resumable.Loader[Any]) -> list[list[int]]:
        return [batch[0].tolist() for epoch in one.epochs(3) for batch in epoch]

    whole = rest(loader())
    for cut in range(len(whole)):
        first, resumed = loader(), loader()
        got = []
        for epoch in first.epochs(3):
            for batch in epoch:
                got.append(batch[0].tolist())
                if len(got) == cut + 1:
                    break
            if len(got) == cut + 1:
                break
        resumed.load_state_dict(first.state_dict())
        assert got + rest(resumed) == whole


def test_a_world_that_is_given_counts_and_not_the_samplers() -> None:
    raw = make(10, 4, World(0, 4), (False, False))
    loaders = [resumable.wrap(raw, world=World(rank, 3)) for rank in range(3)]
    assert [sizes(one) for one in loaders] == [[4]] * 3


def older(ranks: int, *, drop_last: bool) -> dict[str, Any]:
    """A state of a version that took `pad` and `drop` for a `DistributedSampler`."""
    tail: Any = "drop" if drop_last else "pad"
    samples: Any = Recorded(23)
    loader = resumable.wrap(DataLoader(samples, batch_size=4, shuffle=True), seed=5, tail=tail, world=World(0, ranks))
    next(iter(loader))
    return loader.state_dict()


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_state_of_an_earlier_version_keeps_its_tail(drop_last: bool) -> None:
    state = older(2, drop_last=drop_last)
    loader = resumable.wrap(make(23, 4, World(0, 2), (drop_last, False)), seed=5)
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert len(loader) == (2 if drop_last else 3)
    chosen: Any = resumable.wrap(make(23, 4, World(0, 2), (drop_last, False)), seed=5, tail="carry")
    with pytest.raises(StateMismatchError, match="tail differs"):
        chosen.load_state_dict(state)


# ---------------------------------------------------------------------- subclasses with different numbers


class Uneven(DistributedSampler[Any]):
    """Gives each rank its share without padding."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        samples: Any = self.dataset
        self.total_size = len(samples)
        self.num_samples = len(range(self.rank, self.total_size, self.num_replicas))


class Truncated(DistributedSampler[Any]):
    """Reads an epoch only in part."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.drop_last = True
        self.num_samples = 2
        self.total_size = self.num_samples * self.num_replicas


class Rounded(DistributedSampler[Any]):
    """Has a property that fills each rank up to a multiple of five."""

    num_samples = property(lambda self: self._full, lambda self, number: setattr(self, "_full", number + -number % 5))


class Halves(RandomSampler):
    """Has a different length."""

    def __len__(self) -> int:
        return 5


OWN_NUMBERS = {"uneven": Uneven, "truncated": Truncated, "rounded": Rounded}


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("name", OWN_NUMBERS)
def test_a_subclass_with_other_numbers_keeps_its_order(name: str, shuffle: bool) -> None:
    """Each rank reads what it reads without `wrap`, and a resume at each step continues exactly."""
    samples: Any = list(range(10))

    def raw(rank: int) -> DataLoader[Any]:
        order = OWN_NUMBERS[name](samples, 3, rank, shuffle=shuffle, seed=2)
        return DataLoader(samples, batch_size=2, sampler=order)

    def of_torch(rank: int) -> list[Any]:
        plain, found = raw(rank), []
        for epoch in range(2):
            plain.sampler.set_epoch(epoch)  # type: ignore[attr-defined]  # it is a DistributedSampler
            found += [batch.tolist() for batch in plain]
        return found

    for rank in range(3):
        whole = of_torch(rank)
        loader, states = resumable.wrap(raw(rank)), list[Any]()
        for epoch in loader.epochs(2):
            for batch in epoch:
                assert batch.tolist() == whole[len(states)]
                states.append(loader.state_dict())
        assert len(states) == len(whole)
        for step, state in enumerate(states, start=1):
            resumed = resumable.wrap(raw(rank))
            resumed.load_state_dict(state)
            assert [batch.tolist() for epoch in resumed.epochs(2) for batch in epoch] == whole[step:]


def test_a_subclass_with_the_numbers_of_its_class_is_translated() -> None:
    class Plain(DistributedSampler[Any]):
        def set_epoch(self, epoch: int) -> None:
            self.told = epoch

    for length, ranks, drops in product((1, 3, 10, 12), (1, 4), (False, True)):
        assert kind_of(Plain(Recorded(length), ranks, 0, drop_last=drops)) is DistributedSampler  # type: ignore[arg-type]
        assert kind_of(DistributedSampler(Recorded(length), ranks, 0, drop_last=drops)) is DistributedSampler  # type: ignore[arg-type]
    samples: Any = list(range(10))
    assert kind_of(RandomSampler(samples)) is RandomSampler
    assert kind_of(Halves(samples)) is None
