"""A sampler of the user's own with other parameters gives another order: it is refused, as far as it can be known."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader, Sampler

import resumable
from resumable import World
from resumable.errors import StateMismatchError, StateMismatchWarning

if TYPE_CHECKING:
    from collections.abc import Iterator


class Strided(Sampler[int]):
    """Keeps its parameters under their names, one with an underscore, and one that says where the run is."""

    def __init__(self, length: int, stride: int, kind: str = "plain", epoch: int = 0) -> None:
        self.length, self._stride, self.kind, self.epoch = length, stride, kind, epoch

    def __iter__(self) -> Iterator[int]:
        for first in range(self._stride):
            yield from range(first, self.length, self._stride)

    def __len__(self) -> int:
        return self.length

    @property
    def seed(self) -> int:
        raise AssertionError("a property is a user's code")


class Batched(Strided):
    """A batch sampler with a parameter more."""

    def __init__(self, length: int, stride: int, batch_size: int) -> None:
        super().__init__(length, stride)
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[Any]:
        order = list(super().__iter__())
        yield from (order[start : start + self.batch_size] for start in range(0, self.length, self.batch_size))


def make(stride: int, kind: str = "plain", epoch: int = 0) -> resumable.Loader[Any]:
    data: Any = list(range(24))
    return resumable.wrap(DataLoader(data, sampler=Strided(24, stride, kind, epoch)), seed=0)


def make_batched(batch_size: int) -> resumable.Loader[Any]:
    data: Any = list(range(24))
    return resumable.wrap(DataLoader(data, batch_sampler=Batched(24, 2, batch_size)), seed=0)


def state_of(loader: resumable.Loader[Any]) -> dict[str, Any]:
    next(iter(loader))
    return loader.state_dict()


@pytest.mark.parametrize(
    ("saved", "now"),
    [
        (lambda: make(2), lambda: make(3)),
        (lambda: make(2), lambda: make(2, "other")),
        (lambda: make_batched(4), lambda: make_batched(6)),
    ],
    ids=["stride", "kind", "batch_size"],
)
def test_another_parameter_is_refused(saved: Any, now: Any) -> None:
    loader = now()
    with pytest.raises(StateMismatchError, match=r"backend\.parameters differs(.|\n)*in the checkpoint(.|\n)*options"):
        loader.load_state_dict(state_of(saved()))


def test_same_parameters_go_on() -> None:
    """The same parameters continue, even if the run says otherwise."""
    loader = make(2, epoch=3)
    loader.load_state_dict(state_of(make(2)))
    assert [int(batch) for batch in loader] == [*range(2, 24, 2), *range(1, 24, 2)]


def test_state_of_an_earlier_version() -> None:
    """A state of an earlier version is not compared, and a message says so."""
    state = state_of(make(2))
    del state["backend"]["parameters"]
    state["digest"] = None
    loader = make(3)
    with pytest.warns(StateMismatchWarning, match=r"does not include backend\.parameters"):
        loader.load_state_dict(state)


class Unseeded(Strided):
    """Shuffles by a generator of its own, which nothing seeds."""

    def __init__(self, length: int) -> None:
        super().__init__(length, 1)
        self.generator = random.Random()  # what is tested

    def __deepcopy__(self, memo: object) -> Unseeded:
        return Unseeded(self.length)

    def __iter__(self) -> Iterator[int]:
        yield from self.generator.sample(range(self.length), self.length)


class Itself(Strided):
    """Is its own iterator, which `iter` sets back."""

    def __iter__(self) -> Itself:
        self.here = 0
        return self

    def __next__(self) -> int:
        if self.here == self.length:
            raise StopIteration
        self.here += 1
        return self.here - 1


def over(sampler: Any, **options: Any) -> resumable.Loader[Any]:
    data: Any = list(range(24))
    return resumable.wrap(DataLoader(data, batch_size=4, sampler=sampler), seed=0, **options)


def two_epochs(loader: resumable.Loader[Any]) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return the batches of what is left of two epochs, and the state after each."""
    run, states = [], []
    for epoch in loader.epochs(2):
        for batch in epoch:
            run.append(batch.tolist())
            states.append(loader.state_dict())
    return run, states


RANKS = pytest.mark.parametrize("options", [{}, {"shard": True, "world": World(1, 2)}], ids=["one", "ranks"])


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
@RANKS
def test_order_that_changes_in_every_run(options: dict[str, Any]) -> None:
    """An order that differs in every run is rejected at every place."""
    run, states = two_epochs(over(Unseeded(24), **options))
    for state in states:
        fresh = over(Unseeded(24), **options)
        fresh.load_state_dict(state)
        with pytest.raises(StateMismatchError, match=r"sampler over list was iterated again(.|\n)*batch (.|\n)*Seed"):
            next(iter(fresh))
    told = over(Unseeded(24), **options)
    told.load_state_dict(states[0], strict=False)
    with pytest.warns(StateMismatchWarning, match=r"iterated again(.|\n)*strict=False"):
        assert len(two_epochs(told)[0]) == len(run) - 1
    accepted = over(Unseeded(24), checks="ranks", **options)
    accepted.load_state_dict(states[0])
    assert len(two_epochs(accepted)[0]) == len(run) - 1


@RANKS
def test_sampler_that_is_its_own_iterator(options: dict[str, Any]) -> None:
    """A sampler that is also its iterator has an end and resumes at every place.

    torch itself gives its first batch for ever.
    """
    run, states = two_epochs(over(Itself(24, 1), **options))
    assert len(run) == (6 if options else 12)
    for step, state in enumerate(states, start=1):
        fresh = over(Itself(24, 1), **options)
        fresh.load_state_dict(state)
        assert two_epochs(fresh)[0] == run[step:]
