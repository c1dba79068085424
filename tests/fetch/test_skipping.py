"""Sources that can skip are not read up to a place, nor for other ranks, and skip to where reading leads."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

import datasets
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import resumable
from resumable._fetch.element_reader import SeededReader
from resumable.errors import BackendError, StateMismatchError, StateMismatchWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LENGTH = 29


class Lines:
    """An iterator over some lines of a file, say, that knows where each of them is.

    Args:
        off: by how many lines each skip() is wrong.
    """

    def __init__(self, epoch: int = 0, *, off: int = 0) -> None:
        self.epoch, self.place, self.off = epoch, 0, off
        self.drawn: list[int] = []

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> tuple[int, float]:
        if self.place >= LENGTH:
            raise StopIteration
        self.drawn.append(self.place)
        self.place += 1
        return self.epoch * 100 + self.place, random.random()

    def skip(self, count: int) -> None:
        self.place += count + self.off


def every_cut(make: Callable[[], resumable.Loader[Any]], epochs: int = 2) -> list[Any]:
    """Go on from a save at every step; the rest of the run is the same. Return the run."""
    loader, run, states = make(), [], []
    for epoch in loader.epochs(epochs):
        for batch in epoch:
            run.append(batch)
            states.append(loader.state_dict())
    assert len(run) > epochs
    for step, state in enumerate(states, start=1):
        resumed = make()
        resumed.load_state_dict(state)
        rest = [batch for epoch in resumed.epochs(epochs) for batch in epoch]
        assert repr(rest) == repr(run[step:]), f"after step {step}"
    return run


def plainly(epoch: int) -> Iterator[tuple[int, float]]:
    """The same as Lines, without skip()."""
    for place in range(LENGTH):
        yield epoch * 100 + place + 1, random.random()


# ---------------------------------------------------------------------- the share of a rank


@pytest.mark.slow
@pytest.mark.parametrize(("size", "batch"), [(2, 1), (2, 3), (3, 4), (4, 2)])
def test_each_rank_draws_its_share(size: int, batch: int) -> None:
    """Each rank draws its share and the last element of a global batch."""
    opened: list[Lines] = []

    def lines(epoch: int) -> Lines:
        opened.append(Lines(epoch))
        return opened[-1]

    def loader(source: Any, rank: int) -> resumable.Loader[Any]:
        world = resumable.World(rank, size)
        return resumable.wrap(source, batch_size=batch, tail="drop", world=world, identity="lines", seed=3)

    steps = LENGTH // (size * batch)
    states = []
    for rank in range(size):
        assert every_cut(partial(loader, lines, rank)) == every_cut(partial(loader, plainly, rank))
        opened.clear()
        last = loader(lines, rank)
        list(last)
        states.append(last.state_dict())
        first, second = opened  # the first global batch is read whole, once, to try skip()
        assert len(first.drawn) == size * batch
        most = (
            steps * (batch + (rank < size - 1)) + batch + 1
        )  # and the elements behind the last global batch show that it is none
        assert len(second.drawn) <= most
    assert all(state == states[0] for state in states), "the state is the same on all ranks"


def test_the_number_of_ranks_changes_in_the_middle_of_an_epoch() -> None:
    def run(size: int, state: Any, stop: int | None) -> tuple[list[Any], Any]:
        """Global batches, of all ranks in turn."""
        loaders = [
            resumable.wrap(Lines, batch_size=12 // size, tail="drop", world=resumable.World(rank, size), seed=3)
            for rank in range(size)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        batches = [batch for _, batch in zip(range(stop or 99), zip(*loaders, strict=True), strict=False)]
        return [[one for part in batch for one in part] for batch in batches], loaders[0].state_dict()

    whole, _ = run(1, None, None)
    for sizes in [(1, 4), (4, 2), (3, 1), (2, 3)]:
        begin, state = run(sizes[0], None, 1)
        rest, _ = run(sizes[1], state, None)
        assert begin + rest == whole


@pytest.mark.parametrize("off", [1, -1])
def test_a_wrong_skip_is_refused_on_several_ranks(off: int) -> None:
    loader = resumable.wrap(
        lambda: Lines(off=off), batch_size=4, tail="drop", world=resumable.World(1, 2), identity="lines"
    )
    with pytest.raises(BackendError, match=r"the skip\(\) of lines does not lead to the same element as reading"):
        next(iter(loader))


def test_a_source_that_ends_in_a_share_of_others_gives_no_batch() -> None:
    loader = resumable.wrap(Lines, batch_size=6, tail="drop", world=resumable.World(0, 2))
    assert len(list(loader)) == LENGTH // 12  # the 5 that are left are less than rank 0 would take


# ---------------------------------------------------------------------- a resume


@pytest.mark.parametrize("off", [1, -1, LENGTH])
def test_a_wrong_skip_is_refused_by_name_when_a_run_resumes(off: int) -> None:
    loader = resumable.wrap(lambda: Lines(off=off), identity="lines")
    for _ in zip(range(7), loader, strict=False):
        state = loader.state_dict()
    resumed = resumable.wrap(lambda: Lines(off=off), identity="lines")
    resumed.load_state_dict(state)
    with pytest.raises(StateMismatchError, match=r"the skip\(\) of lines(.|\n)*after skip\(6\)"):
        next(iter(resumed))
    lenient = resumable.wrap(lambda: Lines(off=off), identity="lines")
    lenient.load_state_dict(state, strict=False)
    with pytest.warns(StateMismatchWarning, match="skip"):
        assert next(iter(lenient))[0] == 8, "it is read instead"


class Rows:
    """An iterable with a `skip` that returns another one, as Hugging Face's streams have."""

    def __init__(self, begin: int = 0, *, off: int = 0) -> None:
        self.begin, self.off = begin, off
        self.read: list[int] = []

    def __iter__(self) -> Iterator[int]:
        for row in range(self.begin, LENGTH):
            self.read.append(row)
            yield row

    def skip(self, count: int) -> Rows:
        rest = Rows(self.begin + count + self.off)
        rest.read = self.read
        return rest


def test_iterable_that_returns_the_rest() -> None:
    """An iterable that returns the rest is not read up to the place."""
    assert len(every_cut(lambda: resumable.wrap(Rows()))) == 2 * LENGTH
    loader = resumable.wrap(Rows())
    for _ in zip(range(9), loader, strict=False):
        state = loader.state_dict()
    rows = Rows()
    resumed = resumable.wrap(rows)
    resumed.load_state_dict(state)
    assert list(resumed) == list(range(9, LENGTH))
    assert rows.read == list(range(8, LENGTH)), "the one that is compared, and the rest"


def test_where_a_borrowed_skip_is_wrong_the_elements_are_read(caplog: pytest.LogCaptureFixture) -> None:
    loader = resumable.wrap(Rows(off=1))
    for _ in zip(range(9), loader, strict=False):
        state = loader.state_dict()
    resumed = resumable.wrap(Rows(off=1))
    resumed.load_state_dict(state)
    assert list(resumed) == list(range(9, LENGTH))
    assert "the skip() of Rows does not lead" in caplog.text


@pytest.mark.slow
def test_other_methods_of_that_name_are_left_alone() -> None:
    class Other(Rows):
        def skip(self, *_: Any) -> Any:
            return None

    class Flag(Rows):
        skip = True  # type: ignore[assignment]

    def wrapped(kind: type[Rows]) -> resumable.Loader[Any]:
        return resumable.wrap(kind())

    for kind in (Other, Flag):
        assert len(every_cut(partial(wrapped, kind))) == 2 * LENGTH


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements before a place must not be drawn, in this process and in those that it forks."""

    def read(_: SeededReader, position: int, count: int) -> int:
        assert not count, f"elements were read to get to a place, from {position} on"
        return 0

    monkeypatch.setattr(SeededReader, "_read_on", read)


# ---------------------------------------------------------------------- Hugging Face


def make_stream(workers: int) -> resumable.Loader[Any]:
    plain = datasets.Dataset.from_dict({"sample": list(range(40))}).to_iterable_dataset(num_shards=4)
    loader = DataLoader(plain.shuffle(seed=0, buffer_size=7), batch_size=3, num_workers=workers)
    return resumable.wrap(loader, resume="replay")


@pytest.mark.slow
@pytest.mark.usefixtures("unread")
def test_two_workers_skip_their_parts_of_it() -> None:
    loader, run = make_stream(2), []
    for epoch in loader.epochs(2):
        for batch in epoch:
            run.append(batch["sample"].tolist())
            if len(run) == 9:
                state = loader.state_dict()
    resumed = make_stream(2)
    resumed.load_state_dict(state)
    assert [batch["sample"].tolist() for epoch in resumed.epochs(2) for batch in epoch] == run[9:]


@pytest.mark.usefixtures("unread")
def test_without_a_data_loader_too() -> None:
    plain = datasets.Dataset.from_dict({"sample": list(range(20))}).to_iterable_dataset(num_shards=2)
    every_cut(lambda: resumable.wrap(plain.shuffle(seed=0, buffer_size=5), batch_size=3, resume="replay"), epochs=1)


# ---------------------------------------------------------------------- torch


class Skipping(IterableDataset[Any]):
    """Its iterator can skip."""

    def __init__(self, off: int = 0) -> None:
        self.off = off

    def __iter__(self) -> Iterator[Any]:
        return Lines(off=self.off)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("unread")
def test_the_iterators_of_workers_skip(workers: int) -> None:
    loader = resumable.wrap(DataLoader(Skipping(), batch_size=4, num_workers=workers))
    for _ in zip(range(5), loader, strict=False):
        state = loader.state_dict()
    run = list(loader)
    resumed = resumable.wrap(DataLoader(Skipping(), batch_size=4, num_workers=workers))
    resumed.load_state_dict(state)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(resumed, run, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_wrong_skip_in_a_worker_is_refused_by_name(workers: int) -> None:
    loader = resumable.wrap(DataLoader(Skipping(1), batch_size=4, num_workers=workers))
    for _ in zip(range(5), loader, strict=False):
        state = loader.state_dict()
    loader.close()
    resumed = resumable.wrap(DataLoader(Skipping(1), batch_size=4, num_workers=workers))
    resumed.load_state_dict(state)
    with pytest.raises(StateMismatchError, match=r"the skip\(\) of Skipping in worker"):
        next(iter(resumed))
