"""A sampler that the training loop changes, as a curriculum: read as PyTorch reads it, or rejected."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader as Torchdatas

import resumable
from resumable.errors import StateMismatchError, UnsupportedError
from resumable.torch import StatefulDataLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DATA: Any = list(range(9000))
EPOCHS = 3


class Curriculum(Sampler[int]):
    """The samples of a level, which the loop raises."""

    def __init__(self) -> None:
        self.level = 0

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[int]:
        for index in range(8):
            yield index + 100 * self.level

    def update(self, _: Any) -> None:
        self.level += 1


class Schedule:
    def __init__(self) -> None:
        self.levels = {"now": 0}


class Inside(Curriculum):
    """The loop changes an object that the sampler holds."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule = Schedule()

    def __iter__(self) -> Iterator[int]:
        for index in range(8):
            yield index + 100 * self.schedule.levels["now"]

    def update(self, _: Any) -> None:
        self.schedule.levels["now"] += 1


class Weighed(Curriculum):
    """The loop writes weights in place, as many as a large dataset has."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = np.zeros(200_000)
        self.offset = torch.zeros(3)

    def __iter__(self) -> Iterator[int]:
        for index in range(8):
            yield (index + int(self.weights.sum()) + int(self.offset.sum())) % 9000

    def update(self, batch: Any) -> None:
        self.weights[150_000 + int(batch[0]) % 100] += 7.0
        self.offset[1] += 1


class Grows(Curriculum):
    """A batch sampler whose batches the loop makes larger."""

    def __init__(self) -> None:
        self.size = 1

    def __iter__(self) -> Iterator[Any]:
        first = 0
        while first < 20:
            yield list(range(first, first + self.size))
            first += self.size

    def update(self, _: Any) -> None:
        self.size += 1


class Remembers(Curriculum):
    """Has a position and a state, as the curricula of verl."""

    def __init__(self) -> None:
        super().__init__()
        self.done = 0

    def __iter__(self) -> Iterator[int]:
        while self.done < 8:
            self.done += 1
            yield self.done + 100 * self.level
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done, "level": self.level}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done, self.level = state["done"], state["level"]


class Unsized(Remembers):
    """Does not say how many it has, so a batch is requested ahead to find the end."""

    __len__ = None  # type: ignore[assignment]


def over(sampler: Any, **options: Any) -> DataLoader[Any]:
    if isinstance(sampler, Grows):
        return DataLoader(DATA, batch_sampler=sampler, **options)
    return DataLoader(DATA, batch_size=2, sampler=sampler, **options)


def of_torch(sampler: Any) -> list[Any]:
    """Return the batches of some epochs of PyTorch alone, with a change after each batch."""
    loader, run = over(sampler), []
    for _ in range(EPOCHS):
        for batch in loader:
            run.append(batch.tolist())
            sampler.update(batch)
    return run


@pytest.mark.parametrize("kind", [Curriculum, Inside, Weighed, Grows, Remembers])
def test_without_workers_each_change_is_followed(kind: Callable[[], Any]) -> None:
    sampler: Any = kind()
    run = []
    for epoch in resumable.wrap(over(sampler)).epochs(EPOCHS):
        for batch in epoch:
            run.append(batch.tolist())
            sampler.update(batch)
    assert run == of_torch(kind())


def trained(sampler: Any, ack: Any = "auto", state: Any = None, save: bool = True) -> tuple[list[Any], list[Any]]:
    """Return the batches until the end, and the state after each batch and each epoch."""
    loader = resumable.wrap(over(sampler), ack=ack)
    if state is not None:
        loader.load_state_dict(state)
    run, states = [], []
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch:
            run.append(batch.tolist())
            if save:
                loader.state_dict()  # which another callback takes
            sampler.update(batch)
            if ack == "manual":
                loader.ack()
            if save and len(run) % 4:
                states.append((len(run), loader.state_dict()))
        if save:
            loader.state_dict()
        sampler.level += 10
        if save:
            states.append((len(run), loader.state_dict()))
    return run, states


@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_what_the_loop_changed_is_in_the_state(ack: str) -> None:
    """A sampler with a state continues with what the loop has changed, also at an epoch's end."""
    run, states = trained(Remembers(), ack)
    assert trained(Remembers(), ack, save=False)[0] == run, "saving changes nothing"
    for done, state in states[:-1]:
        assert trained(Remembers(), ack, state)[0] == run[done:]


def test_rewind_keeps_earlier_changes() -> None:
    """A batch that is read again has the change before it."""
    sampler = Remembers()
    loader = resumable.wrap(over(sampler))
    batches = iter(loader)
    next(batches)
    loader.state_dict()
    sampler.level += 5
    first = next(batches).tolist()
    loader.rewind()
    assert next(iter(loader)).tolist() == first == [503, 504]


def test_a_batch_requested_ahead_has_no_change() -> None:
    """The end of an epoch of unknown length is found when a batch is requested ahead."""
    with pytest.raises(UnsupportedError, match=r"level of the sampler Unsized was changed(.|\n)*needs __len__"):
        trained(Unsized())


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
def test_a_change_without_a_state_is_noticed_at_the_resume() -> None:
    loader = resumable.wrap(over(sampler := Curriculum()))
    for _, batch in zip(range(3), loader, strict=False):
        sampler.update(batch)
    again = resumable.wrap(over(Curriculum()))
    again.load_state_dict(loader.state_dict())
    with pytest.raises(StateMismatchError, match=r"sampler over list was iterated again(.|\n)*add state_dict"):
        next(iter(again))


@pytest.mark.slow
def test_workers_read_what_the_loop_changed_between_epochs() -> None:
    sampler = Curriculum()
    loader = resumable.wrap(over(sampler, num_workers=1, persistent_workers=True))
    for epoch in loader.epochs(2):
        assert [batch[0].item() for batch in epoch] == [100 * epoch.number + first for first in range(0, 8, 2)]
        sampler.level += 1
    with pytest.raises(UnsupportedError, match=r"level of the sampler Curriculum was changed(.|\n)*2\n(.|\n)*3\n"):
        for _ in loader:
            sampler.level += 1


class CountsPasses(Curriculum):
    def __iter__(self) -> Iterator[int]:
        self.level += 1
        yield from super().__iter__()


def test_what_both_change_is_rejected() -> None:
    sampler = CountsPasses()
    loader = resumable.wrap(over(sampler))
    with pytest.raises(
        UnsupportedError, match=r"level of the sampler CountsPasses (.|\n)*iterated: 1\n(.|\n)*loop: +5\n"
    ):
        for _ in loader:
            sampler.level += 5


class Seeded(Sampler[int]):
    """Keeps what `set_epoch` computes."""

    def __init__(self) -> None:
        self.seed, self.generator = 3, torch.Generator()

    def set_epoch(self, epoch: int) -> None:
        self.seed, self.order = 3 + epoch, [epoch]

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(8, generator=self.generator.manual_seed(self.seed)).tolist()


class Half(DistributedSampler[Any]):
    def __iter__(self) -> Iterator[int]:
        yield from list(super().__iter__())[:8]


def told(sampler: Any, first: int, state: Any = None) -> tuple[list[Any], list[Any]]:
    """Return the batches and states of a run that calls `set_epoch` and iterates its sampler."""
    loader, found, states = resumable.wrap(over(sampler)), [], []
    if state is not None:
        loader.load_state_dict(state)
    for epoch in loader.epochs(EPOCHS):
        sampler.set_epoch(epoch.number + first)
        for batch in epoch:
            found.append(batch.tolist())
            states.append(loader.state_dict())
            assert len(list(sampler)) == 8
    return found, states


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("make", [Seeded, lambda: Half(DATA[:80], 1, 0)], ids=["own", "DistributedSampler"])
def test_right_programs(make: Callable[[], Any], first: int) -> None:
    """`set_epoch` and iterating a sampler do not count as changes."""
    whole, states = told(make(), first)
    for done, state in enumerate(states[:-1], start=1):
        assert told(make(), first, state)[0] == whole[done:]


@pytest.mark.parametrize("kind", [Curriculum, Remembers])
def test_drop_in(kind: Callable[[], Any]) -> None:
    """Both `StatefulDataLoader`s read the same, and ours resumes at each step."""

    def run(loader: Any, sampler: Any, epochs: int) -> tuple[list[Any], list[Any]]:
        found, states = [], []
        for _ in range(epochs):
            for batch in loader:
                found.append(batch.tolist())
                loader.sampler.update(batch)
                states.append(loader.state_dict())
        assert loader.sampler is sampler
        return found, states

    theirs, ours = kind(), kind()
    expected, _ = run(Torchdatas(DATA, batch_size=2, sampler=theirs), theirs, 2)
    found, states = run(StatefulDataLoader(DATA, batch_size=2, sampler=ours), ours, 2)
    assert found == expected
    if kind is Remembers:
        for done, state in enumerate(states[:3], start=1):
            sampler = kind()
            loader = StatefulDataLoader(DATA, batch_size=2, sampler=sampler)
            loader.load_state_dict(state)
            assert run(loader, sampler, 2)[0] == found[done:]


def test_looking_is_cheap() -> None:
    """The sampler of a large dataset is compared in about a millisecond per batch."""
    import time  # noqa: PLC0415  # for this test

    from resumable.backends.torch.changes import Changes  # noqa: PLC0415  # the same

    class Large:
        def __init__(self) -> None:
            self.lengths, self.weights = list(range(1_000_000)), torch.ones(10_000_000)
            self.costs = np.ones(1_000_000)
            self.buckets = [list(range(1000)) for _ in range(1000)]

    changes = Changes(Large(), DATA)
    began = time.perf_counter()
    for _ in range(100):
        changes.found(whole=False)
    assert time.perf_counter() - began < 1.0, "ten milliseconds each, on a busy machine"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not changes.found(whole=True)
