"""`order="torch"`: the batches of torch's own loops, over all epochs, from every step on, on any number of ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain, product
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader

import resumable
from resumable import World
from resumable.backends.torch import orders as torch_order
from resumable.errors import ConfigurationError, StateMismatchError, UnsupportedError

EPOCHS = 4
DROPS = list(product((False, True), (False, True)))
Make = Callable[[], DataLoader[Any]]


class Numbers(torch.utils.data.Dataset[Any]):
    """Gives the index, and a random number of its own."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[int, float]:
        return int(index), float(torch.rand(()))


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def indices(batches: Any) -> list[Any]:
    return [batch[0].tolist() for batch in batches]


def epochs_of(loader: Any, count: int = EPOCHS) -> list[Any]:
    """The epochs of a loader of torch, as its loop gives them."""
    found = []
    for epoch in range(count):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        found.append(indices(loader))
    return found


def dealt(length: int, size: int, world: World, drops: tuple[bool, bool], *, shuffle: bool = True) -> DataLoader[Any]:
    """`drops` is `drop_last` of the sampler, and of the loader."""
    data = Numbers(length)
    order: Any = DistributedSampler(data, world.size, world.rank, shuffle, seed=7, drop_last=drops[0])
    return DataLoader(data, batch_size=size, sampler=order, drop_last=drops[1])


@pytest.mark.slow
@pytest.mark.parametrize("drops", DROPS)
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_distributed_sampler_gives_what_torch_gives(drops: tuple[bool, bool], shuffle: bool) -> None:
    for length, size, ranks in product((1, 5, 23, 24), (1, 3, 8), (1, 2, 4)):
        for rank in range(ranks):
            plain = dealt(length, size, World(rank, ranks), drops, shuffle=shuffle)
            expected = epochs_of(plain)
            if expected[0]:
                assert [indices(one) for one in resumable.wrap(plain, order="torch").epochs(EPOCHS)] == expected


DATA = Numbers(23)
WEIGHTS = torch.linspace(0, 1, 23).tolist()
GENERATORS: dict[str, Callable[..., DataLoader[Any]]] = {
    "shuffle": lambda **more: DataLoader(DATA, 4, shuffle=True, generator=seeded(), **more),
    "drop_last": lambda **more: DataLoader(DATA, 4, shuffle=True, drop_last=True, generator=seeded(), **more),
    "whole batches": lambda **more: DataLoader(Numbers(24), 4, shuffle=True, generator=seeded(), **more),
    "another generator": lambda **more: DataLoader(
        DATA, 4, sampler=RandomSampler(DATA, generator=seeded()), generator=seeded(), **more
    ),
    "fewer": lambda **more: _random(more, num_samples=7),
    "more": lambda **more: _random(more, num_samples=50),
    "replacement": lambda **more: _random(more, replacement=True, num_samples=70),
    "subset": lambda **more: DataLoader(DATA, 2, sampler=SubsetRandomSampler([9, 3, 5, 1], seeded()), **more),
    "weighted": lambda **more: DataLoader(DATA, 4, sampler=WeightedRandomSampler(WEIGHTS, 30, True, seeded()), **more),
    "weighted once": lambda **more: DataLoader(
        DATA, 4, sampler=WeightedRandomSampler(WEIGHTS, 20, False, seeded()), **more
    ),
    "torchdata": lambda **more: StatefulDataLoader(DATA, 4, shuffle=True, generator=seeded(), **more),
    "in order": lambda **more: DataLoader(DATA, 4, **more),
}


def _random(more: dict[str, Any], **options: Any) -> DataLoader[Any]:
    generator = seeded()
    return DataLoader(DATA, 4, sampler=RandomSampler(DATA, generator=generator, **options), generator=generator, **more)


def check(make: Make) -> None:
    expected = epochs_of(make())
    source = make()
    before = None if source.generator is None else source.generator.get_state()
    with resumable.wrap(source, order="torch") as loader:
        assert [indices(one) for one in loader.epochs(EPOCHS)] == expected
    assert before is None or source.generator.get_state().equal(before)


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
def test_a_generator_gives_what_torch_gives(make: Make) -> None:
    check(make)


QUICK = {"shuffle", "more", "torchdata"}
SOME = [pytest.param(name, id=name, marks=[] if name in QUICK else pytest.mark.long) for name in GENERATORS]


@pytest.mark.slow
@pytest.mark.parametrize("lives_on", [False, True])
@pytest.mark.parametrize("name", SOME)
def test_it_does_with_workers(name: str, lives_on: bool) -> None:
    check(lambda: GENERATORS[name](num_workers=2, persistent_workers=lives_on))


def test_batches_of_the_datasets_own() -> None:
    plain = DataLoader(DATA, None, shuffle=True, generator=seeded())
    expected = [[index for index, _ in plain] for _ in range(EPOCHS)]
    loader = resumable.wrap(DataLoader(DATA, None, shuffle=True, generator=seeded()), order="torch")
    assert [[index for index, _ in epoch] for epoch in loader.epochs(EPOCHS)] == expected


def test_a_generator_that_was_drawn_from_goes_on_from_its_state() -> None:
    def make(draws: int) -> DataLoader[Any]:
        generator = seeded()
        torch.rand(draws, generator=generator)
        return DataLoader(DATA, 4, shuffle=True, generator=generator)

    check(lambda: make(5))
    state = resumable.wrap(make(5), order="torch").state_dict()
    with pytest.raises(StateMismatchError, match=r"sampler\.drawn differs(.|\n)*Seed it just before"):
        resumable.wrap(make(6), order="torch").load_state_dict(state)


RESUMED: dict[str, Make] = {
    "distributed": lambda: dealt(23, 4, World(1, 2), (False, False)),
    "distributed, dropped": lambda: dealt(23, 4, World(0, 2), (True, True)),
    **{name: GENERATORS[name] for name in ("shuffle", "more", "replacement", "weighted", "torchdata")},
}


@pytest.mark.parametrize("make", RESUMED.values(), ids=RESUMED)
def test_a_resume_at_every_step_goes_on_as_torch_would(make: Make) -> None:
    """The random number of each sample is that of the uninterrupted run, too."""
    whole = [b for epoch in resumable.wrap(make(), order="torch").epochs(3) for b in epoch]
    assert indices(whole) == list(chain.from_iterable(epochs_of(make(), 3)))
    states = [state for _, state in _with_states(make)]
    assert max(len(json.dumps(state)) for state in states) < 1024
    for done, state in enumerate(states, start=1):
        resumed = resumable.wrap(make(), order="torch")
        resumed.load_state_dict(state)
        rest = [batch for epoch in resumed.epochs(3) for batch in epoch]
        assert indices(rest) == indices(whole[done:])
        assert all(a[1].equal(b[1]) for a, b in zip(rest, whole[done:], strict=True))


def _with_states(make: Make) -> Any:
    loader = resumable.wrap(make(), order="torch")
    for epoch in loader.epochs(3):
        for batch in epoch:
            yield batch, loader.state_dict()


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
@pytest.mark.parametrize(("before", "after"), [(4, 2), (4, 1), (2, 4), (1, 4)])
def test_number_of_ranks_changes(before: int, after: int) -> None:
    """The number of ranks changes, and the global batches do not.

    What rank 0, 1... got, taken in turn, is torch's permutation; also after a resize at any step.
    """

    def ranks(count: int) -> list[resumable.Loader[Any]]:
        made = (dealt(24, 8 // count, World(rank, count), (False, False)) for rank in range(count))
        return [resumable.wrap(one, order="torch") for one in made]

    def global_batch(loaders: list[Any]) -> list[tuple[int, float]]:
        batches = [next(iter(loader)) for loader in loaders]
        dealt_out = zip(*(zip(*(values.tolist() for values in batch), strict=True) for batch in batches), strict=True)
        return [sample for turn in dealt_out for sample in turn]

    whole = [global_batch(loaders) for loaders in [ranks(before)] for _ in range(6)]
    for epoch in range(2):
        order = [index for batch in whole[3 * epoch : 3 * epoch + 3] for index, _ in batch]
        assert order == torch.randperm(24, generator=seeded(7 + epoch)).tolist()
    for cut in range(6):
        loaders = ranks(before)
        got = [global_batch(loaders) for _ in range(cut)]
        state, loaders = loaders[0].state_dict(), ranks(after)
        for loader in loaders:
            loader.load_state_dict(state)
        assert got + [global_batch(loaders) for _ in range(cut, 6)] == whole


def test_keep_local_takes_other_steps_over_the_same_order() -> None:
    def make(rank: int, count: int) -> resumable.Loader[Any]:
        one = dealt(24, 2, World(rank, count), (False, False))
        return resumable.wrap(one, order="torch", on_change="keep_local")

    first, order = [make(rank, 4) for rank in range(4)], torch.randperm(24, generator=seeded(7)).tolist()
    seen = [index for loader in first for index in next(iter(loader))[0].tolist()]
    assert sorted(seen) == sorted(order[:8])
    two = [make(rank, 2) for rank in range(2)]
    for rank, loader in enumerate(two):
        loader.load_state_dict(first[0].state_dict())
        assert list(chain.from_iterable(indices(loader))) == order[8 + rank :: 2]


def test_sample_indices_tell_the_share_and_the_whole() -> None:
    loaders = [resumable.wrap(dealt(23, 3, World(rank, 2), (False, False)), order="torch") for rank in range(2)]
    whole = loaders[1].sample_indices(epoch=2, step=3)
    assert [loaders[1].sample_indices(epoch=2, step=3, rank=rank) for rank in range(2)] == [whole[::2], whole[1::2]]
    assert whole[1::2] == epochs_of(dealt(23, 3, World(1, 2), (False, False)))[2][3]


def test_seek_goes_back_and_forth() -> None:
    make = GENERATORS["more"]
    expected, loader = epochs_of(make()), resumable.wrap(make(), order="torch")
    for epoch, step in [(3, 2), (0, 1), (2, 0), (0, 0), (1, 12)]:
        loader.seek(epoch=epoch, step=step)
        assert next(iter(loader))[0].tolist() == expected[epoch][step]


def test_a_state_of_another_order_or_seed_is_refused() -> None:
    def make(seed: int, order: Any = "torch") -> resumable.Loader[Any]:
        return resumable.wrap(DataLoader(DATA, 4, shuffle=True, generator=seeded(seed)), order=order)

    state = make(3).state_dict()
    with pytest.raises(StateMismatchError, match=r"sampler\.torch_seed differs(.|\n)*checkpoint: 3\n(.|\n)*run: +4"):
        make(4).load_state_dict(state)
    with pytest.raises(StateMismatchError, match=r"sampler\.name\) differs"):
        make(3, order="feistel").load_state_dict(state)
    with pytest.raises(StateMismatchError, match=r"sampler\.name\) differs"):
        make(3).load_state_dict(make(3, order=None).state_dict())
    workers = DataLoader(DATA, 4, shuffle=True, generator=seeded(), num_workers=1, persistent_workers=True)
    with pytest.raises(StateMismatchError, match=r"sampler\.workers_seed differs(.|\n)*persistent_workers"):
        resumable.wrap(workers, order="torch").load_state_dict(state)


def test_a_torch_that_draws_other_numbers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    makes: list[Make] = [GENERATORS["shuffle"], lambda: dealt(23, 4, World(), (False, False))]
    states = [resumable.wrap(make(), order="torch").state_dict() for make in makes]
    real = torch.randperm
    monkeypatch.setattr(torch, "randperm", lambda n, generator: real(n, generator=generator).flip(0))
    for make, state in zip(makes, states, strict=True):
        with pytest.raises(StateMismatchError, match=r"sampler\.torch differs(.|\n)*generates different numbers"):
            resumable.wrap(make(), order="torch").load_state_dict(state)


def test_feistel_is_the_order_by_default() -> None:
    ours: tuple[Any, ...] = (None, "feistel")
    loaders = [resumable.wrap(GENERATORS["shuffle"](), order=order) for order in ours]
    assert indices(loaders[0]) == indices(loaders[1]) != epochs_of(GENERATORS["shuffle"]())[0]
    assert resumable.wrap([1, 2], batch_size=1, order="feistel").state_dict()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(4))


class Own(Sampler[int]):
    def __iter__(self) -> Any:
        return iter(range(4))

    def __len__(self) -> int:
        return 4


class OwnBatches(BatchSampler):
    pass


class OwnDistributed(DistributedSampler[Any]):
    def __iter__(self) -> Any:
        return iter(range(4))


def own_batches() -> DataLoader[Any]:
    return DataLoader(DATA, batch_sampler=OwnBatches(SequentialSampler(DATA), 2, drop_last=False))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "list": (lambda: [1, 2, 3], "option order does not fit a list"),
    "generator": (lambda: Stream().__iter__, "option order does not fit a method"),
    "stream": (lambda: DataLoader(Stream()), "option order does not fit a DataLoader"),
    "sampler": (lambda: DataLoader(DATA, sampler=Own()), "Own determines the order"),
    "batches": (own_batches, "OwnBatches determines the order"),
    "subclass": (lambda: DataLoader(DATA, sampler=OwnDistributed(DATA, 1, 0)), "OwnDistributed determines the order"),
    "ours": (
        lambda: DataLoader(DATA, sampler=resumable.ResumableSampler(DATA)),
        "ResumableSampler determines the order",
    ),
    "no generator": (
        lambda: DataLoader(DATA, shuffle=True),
        "has no generator. PyTorch then seeds each epoch from the global RNG",
    ),
    "no generator, subset": (
        lambda: DataLoader(DATA, sampler=SubsetRandomSampler([1])),
        "has no generator",
    ),
    "large": (lambda: DataLoader(Numbers(10**8 + 1), shuffle=True, generator=seeded()), "up to 100000000"),
    "large, ranks": (lambda: dealt(10**8 + 1, 1, World(), (False, False)), "up to 100000000"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_order_of_torchs_own_is_refused_by_name(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        resumable.wrap(make(), order="torch")


def test_options_that_contradict_it_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"seed=5, but the generator of the source has the seed 3"):
        resumable.wrap(GENERATORS["shuffle"](), order="torch", seed=5)
    with pytest.raises(ConfigurationError, match=r"seed=5, but the sampler of the source has the seed 7"):
        resumable.wrap(dealt(23, 4, World(), (False, False)), order="torch", seed=5)
    by_default = DataLoader(DATA, sampler=DistributedSampler(DATA, 1, 0))
    with pytest.raises(ConfigurationError, match=r"seed=5 were passed, but the DistributedSampler.*seed 0"):
        resumable.wrap(by_default, order="torch", seed=5)
    resumable.wrap(GENERATORS["shuffle"](), order="torch", seed=3)
    with pytest.raises(ConfigurationError, match="only one can determine the order"):
        resumable.wrap(GENERATORS["shuffle"](), order="torch", sampler=resumable.samplers.Sequential(23))
    with pytest.raises(ConfigurationError, match="order must be one of feistel, torch"):
        resumable.wrap(GENERATORS["shuffle"](), order="random")  # type: ignore[call-overload]


def test_an_epoch_that_is_absurdly_far_is_refused() -> None:
    loader = resumable.wrap(GENERATORS["shuffle"](), order="torch")
    loader.seek(epoch=1 << 40)
    with pytest.raises(UnsupportedError, match="replaying every epoch before it"):
        next(iter(loader))


def test_two_permutations_are_kept() -> None:
    order = torch_order.Seeded(1000, 0)
    for epoch in range(5):
        order.indices(epoch, 0, 1)
    assert order._of.cache_info().currsize == 2
