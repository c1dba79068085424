"""The number of elements of a resumed epoch is compared with the source's length, or with the epochs before."""

from __future__ import annotations

import random
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

import resumable
from resumable.errors import PromiseWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LENGTH, EPOCHS = 24, 5


class Buckets(IterableDataset[Any]):
    """Has a state without the bucket that it fills: some elements of a resumed epoch are lost, after right ones."""

    at, back = 0, False

    def __iter__(self) -> Iterator[int]:
        self.at, self.back, bucket = (self.at if self.back else 0), False, list[int]()
        while self.at < LENGTH:
            number = self.at
            self.at += 1
            if number > 1:
                yield number
            else:
                bucket.append(number)
        yield from bucket

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.back = state["at"], True


class Sized(Buckets):
    def __len__(self) -> int:
        return LENGTH


class Whole(Buckets):
    last = LENGTH

    def __iter__(self) -> Iterator[int]:
        self.at, self.back = (self.at if self.back else 0), False
        while self.at < self.last:
            self.at += 1
            yield self.at


class Shorter(Whole):
    last = LENGTH - 2


class Varies(IterableDataset[int]):
    """Drops elements at random; has a whole state."""

    at, back, epoch = 0, False, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.at, self.back = (self.at if self.back else 0), False
        while self.at < LENGTH:
            self.at += 1
            if random.Random(self.epoch * LENGTH + self.at).random() < 0.8:
                yield self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.back = state["at"], True


class Estimated(Varies):
    def __len__(self) -> int:
        return LENGTH


def torn(epoch: int) -> Iterator[int]:
    """Yields fewer elements since its file was truncated."""
    yield from range(CUT[0])


CUT = [LENGTH]


class Only:
    """Any object with these methods."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.state_dict, self.load_state_dict = source.state_dict, source.load_state_dict

    def __iter__(self) -> Iterator[int]:
        return iter(self.source)

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)


class OnlySized(Only):
    def __len__(self) -> int:
        return len(self.source)


WAYS: dict[str, Callable[[Any], resumable.Loader[Any]]] = {
    "iterable": lambda source: resumable.wrap(
        (OnlySized if hasattr(source, "__len__") else Only)(source), batch_size=4, seed=0, identity="x"
    ),
    "stream": lambda source: resumable.wrap(DataLoader(source, batch_size=1), seed=0, identity="x"),
    "streams": lambda source: resumable.wrap(DataLoader(source, batch_size=1), seed=0, identity="x", streams=1),
}


def told(make: Callable[[], resumable.Loader[Any]], epoch: int, change: Callable[[], None] = lambda: None) -> list[str]:
    """Save after the third step of an epoch, and return the warnings of a run that resumes there."""
    loader, states = make(), list[Any]()
    for one in loader.epochs(epoch + 1):
        for _ in one:
            if (one.number, loader.cursor.step) == (epoch, 3):
                states.append(loader.state_dict())
    change()
    resumed = make()
    resumed.load_state_dict(states[0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for one in resumed.epochs(EPOCHS):
            for _ in one:
                pass
    return [str(one.message) for one in caught if one.category is PromiseWarning]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("source", [Buckets, Sized])
def test_a_state_that_loses_elements_later_is_reported_at_the_end_of_the_epoch(source: Any, way: str) -> None:
    sized = source is Sized and way != "streams"  # of several streams, each may read a part
    for epoch in (0, 2):
        found = told(lambda: WAYS[way](source()), epoch)
        assert len(found) == (epoch == 2 or sized)
        for one in found:
            why = "as in 2 epochs before" if epoch else "its length"
            assert f"expected:    24, {why}\n  in this run: 22" in one


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("source", [Varies, Estimated])
def test_epochs_that_differ_in_length_are_right(source: Any, way: str) -> None:
    for epoch in (1, 2, 3):
        assert told(lambda: WAYS[way](source()), epoch) == []


class Continues:
    """After an epoch that was left, the next one has the rest of the elements."""

    at = 0

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        while self.at < LENGTH:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("whole", [0, 1])  # epochs before the one that is left
def test_the_rest_of_an_epoch_that_was_left_gets_no_warning(whole: int) -> None:
    loader = resumable.wrap(Continues(), batch_size=4, seed=0, identity="x")
    for epoch in loader.epochs(whole + 2):
        for _ in epoch:
            if epoch.number >= whole and loader.cursor.step == 2:
                break
        state = loader.state_dict()
    again = resumable.wrap(Continues(), batch_size=4, seed=0, identity="x")
    again.load_state_dict(state)
    assert [len(list(epoch)) for epoch in again.epochs(whole + 3)] == [2, 6]


def test_a_source_that_is_read_again_is_compared_with_the_epochs_before() -> None:
    def make() -> resumable.Loader[Any]:
        return resumable.wrap(torn, batch_size=4, seed=0)

    try:
        (found,) = told(make, 2, lambda: CUT.insert(0, LENGTH - 2))
    finally:
        CUT[:] = [LENGTH]
    assert "in this run: 22" in found
    assert told(make, 2) == []


def test_the_counts_are_kept_over_several_resumes() -> None:
    """Each process reads one epoch in part, and its end and a whole one: no process has seen two whole ones."""
    state = None
    for end in range(1, 4):
        loader = WAYS["iterable"](Shorter() if end == 3 else Whole())
        if state is not None:
            loader.load_state_dict(state)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for one in loader.epochs(end + 1):
                for _ in one:
                    if (one.number, loader.cursor.step) == (end, 3):
                        state = loader.state_dict()
                        break
        assert [one.category for one in caught] == [PromiseWarning] * (end == 3)
