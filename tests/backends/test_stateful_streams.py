"""Iterables with a state, of every shape: on the object, on its iterator, or on both; saved at every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import ChainDataset, DataLoader, IterableDataset, get_worker_info

import resumable
from resumable.errors import DataError, OnePassError, StateMismatchError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LENGTH, EPOCHS = 5, 2


def of_worker(number: int) -> int:
    info = get_worker_info()
    return number + 100 * (0 if info is None else info.id)


class Own(IterableDataset[int]):
    """Its own iterator, which `__iter__` sets back: the state has to come after that."""

    def __iter__(self) -> Iterator[int]:
        self.i = 0
        return self

    def __next__(self) -> int:
        if self.i >= LENGTH:
            raise StopIteration
        self.i += 1
        return of_worker(self.i - 1)

    def state_dict(self) -> dict[str, int]:
        return {"i": self.i}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.i = state["i"]


class GoesOn(Own):
    """Its own iterator, which begins again only after its end."""

    i = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        try:
            return super().__next__()
        except StopIteration:
            self.i = 0
            raise


class OpensInIter(Own):
    """Its own iterator, which looks at the state where it is opened: the state has to come before."""

    i = 0

    def __iter__(self) -> Iterator[int]:
        self.i %= LENGTH
        self.file = iter(range(self.i, LENGTH))
        return self

    def __next__(self) -> int:
        number = next(self.file)
        self.i = number + 1
        return of_worker(number)


class Resets(IterableDataset[int]):
    """Gives an iterator without a state, over what `__iter__` sets back: the state has to come after that."""

    def __iter__(self) -> Iterator[int]:
        self.i = 0
        return iter(self.step, -1)

    def step(self) -> int:
        if self.i >= LENGTH:
            return -1
        self.i += 1
        return of_worker(self.i - 1)

    state_dict, load_state_dict = Own.state_dict, Own.load_state_dict


class Generator(IterableDataset[int]):
    """Gives a generator that goes on at its state: the state has to come before."""

    i = 0

    def __iter__(self) -> Iterator[int]:
        while self.i < LENGTH:
            self.i += 1
            yield of_worker(self.i - 1)
        self.i = 0

    state_dict, load_state_dict = Own.state_dict, Own.load_state_dict


class InIterator(IterableDataset[int]):
    """The iterator has a state, and the dataset has none."""

    def __iter__(self) -> Iterator[int]:
        return iter(Own())


class InBoth(IterableDataset[int]):
    """The dataset counts its passes, and the iterator its elements."""

    passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return Offset(1000 * self.passes)

    def state_dict(self) -> dict[str, int]:
        return {"passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.passes = state["passes"]


class Offset(Own):
    def __init__(self, offset: int) -> None:
        self.offset, self.i = offset, 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return self.offset + super().__next__()

    def state_dict(self) -> dict[str, int]:
        return {"i": self.i, "offset": self.offset}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.i, self.offset = state["i"], state["offset"]


SHAPES = [Own, GoesOn, OpensInIter, Resets, Generator, InIterator, InBoth]
WORKERS: dict[str, dict[str, Any]] = {
    "1": {"num_workers": 1},
    "2": {"num_workers": 2},
    "2, persistent": {"num_workers": 2, "persistent_workers": True},
}


def check(make: Any, *, stride: int = 1) -> None:
    """Resume from a state of every step, or every n-th, and compare with the uninterrupted run."""
    run, states = [], []
    loader = make()
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch:
            run.append((epoch.number, str(batch)))
            states.append(loader.state_dict())
    assert len(run) > EPOCHS
    for step in range(1, len(states) + 1, stride):
        resumed = make()
        resumed.load_state_dict(states[step - 1])
        rest = [(epoch.number, str(batch)) for epoch in resumed.epochs(EPOCHS) for batch in epoch]
        assert rest == run[step:], f"resumed after {step} batches"


@pytest.mark.parametrize("shape", SHAPES)
def test_in_a_data_loader_without_workers(shape: type) -> None:
    check(lambda: resumable.wrap(DataLoader(shape(), batch_size=2)))
    check(lambda: resumable.wrap(DataLoader(shape(), batch_size=None), ack="auto", randomness="batch"))


@pytest.mark.parametrize("shape", SHAPES)
def test_wrapped_by_itself(shape: type) -> None:
    check(lambda: resumable.wrap(shape(), batch_size=2, tail="partial"))
    check(lambda: resumable.wrap(shape()))


@pytest.mark.parametrize("shape", SHAPES)
def test_made_by_a_function(shape: type) -> None:
    check(lambda: resumable.wrap(shape, batch_size=2))


CELLS = [(shape, workers) for shape in SHAPES for workers in WORKERS]
OFTEN = [(Own, "1"), (InBoth, "2"), (Own, "2, persistent")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "workers"),
    [pytest.param(*cell, marks=() if cell in OFTEN else pytest.mark.long) for cell in CELLS],
)
def test_in_workers(shape: type, workers: str) -> None:
    stride = 4 if (shape, workers) in OFTEN else 1
    check(lambda: resumable.wrap(DataLoader(shape(), batch_size=2, **WORKERS[workers])), stride=stride)


@pytest.mark.parametrize("shape", [Own, GoesOn, OpensInIter, Generator])
def test_acknowledged_later(shape: type) -> None:
    run = list(resumable.wrap(shape()))
    loader = resumable.wrap(shape(), ack="manual")
    for _ in zip(range(4), loader, strict=False):
        pass
    loader.ack(2)
    resumed = resumable.wrap(shape(), ack="manual")
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == run[2:]


# ---------------------------------------------------------------------- what cannot be right


class Forgets(Own):
    """Neither order brings it back."""

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


FORGETFUL: dict[str, Callable[..., resumable.Loader]] = {
    "by itself": lambda **options: resumable.wrap(Forgets(), **options),
    "in a DataLoader": lambda **options: resumable.wrap(DataLoader(Forgets(), batch_size=None), **options),
}


@pytest.mark.parametrize("how", FORGETFUL)
def test_a_state_that_brings_nothing_back_is_refused(how: str) -> None:
    make = FORGETFUL[how]
    loader = make()
    states = [loader.state_dict() for _ in loader]
    resumed = make()
    resumed.load_state_dict(states[1])
    with pytest.raises(StateMismatchError) as caught:
        next(iter(resumed))
    for part in (
        "in the checkpoint: element 2 with the digest",
        "in this run:       an element with",
        'resume="replay"',
    ):
        assert part in str(caught.value)
    assert "before and after iterating" in str(caught.value)
    replayed = make(resume="replay")
    replayed.load_state_dict(states[1])
    assert list(replayed) == [2, 3, 4]


@pytest.mark.slow
def test_every_worker_compares_its_own() -> None:
    """Also the one whose turn is not next."""
    options: dict[str, Any] = {"batch_size": None, "num_workers": 2}
    loader = resumable.wrap(DataLoader(Forgets(), **options))
    states = [loader.state_dict() for _ in loader]
    resumed = resumable.wrap(DataLoader(Forgets(), **options))
    resumed.load_state_dict(states[0])
    iterator = iter(resumed)
    assert next(iterator) == 100  # the second worker has given nothing yet
    with pytest.raises(StateMismatchError, match="Forgets in worker 0 was restored"):
        next(iterator)


def test_an_iterator_with_a_state_that_can_be_read_once_says_so() -> None:
    class Once(GoesOn):
        def __next__(self) -> int:
            return Own.__next__(self)

    loader = resumable.wrap(Once())
    assert list(loader) == [0, 1, 2, 3, 4]
    with pytest.raises(OnePassError, match="can only be read once, but epoch 1"):
        list(loader)


def test_a_state_that_needs_arguments_is_refused() -> None:
    class Streaming(Own):
        def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, int]:  # type: ignore[override]  # so it is
            return {"i": num_samples * from_beginning}

    with pytest.raises(UnsupportedError, match=r"needs arguments.*\n.*StreamingDataLoader"):
        resumable.wrap(DataLoader(Streaming(), batch_size=2))
    check(lambda: resumable.wrap(DataLoader(Streaming(), batch_size=2), resume="replay"))


def test_a_length_that_nobody_knows_is_none() -> None:
    loader = resumable.wrap(DataLoader(ChainDataset([Generator()]), batch_size=2))
    assert not loader.is_sized
    assert len(list(loader)) == 3


def test_a_collate_fn_that_ends_an_epoch_by_mistake_is_named() -> None:
    loader = resumable.wrap(DataLoader(Generator(), batch_size=2, collate_fn=lambda samples: next(iter(samples[2:]))))
    with pytest.raises(DataError, match="collate_fn raised StopIteration"):
        list(loader)
