"""No epoch is empty, and none is short, however the loop stops: over sources, tails, ranks and forms of the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, Sampler
from torchdata import nodes

import resumable
from resumable import World
from resumable.testing import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EPOCHS = 3
Run = list[tuple[int, str]]


class Reader:
    """Goes on where it stands when it is iterated again, and begins again only after its end."""

    def __init__(self, length: int) -> None:
        self.length, self.index, self.laps = length, 0, 0

    def state_dict(self) -> dict[str, int]:
        return {"index": self.index, "laps": self.laps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.index, self.laps = state["index"], state["laps"]

    def __iter__(self) -> Iterator[int]:
        while self.index < self.length:
            self.index += 1
            yield self.laps * 100 + self.index - 1
        self.index, self.laps = 0, self.laps + 1


class SizedReader(Reader):
    def __len__(self) -> int:
        return self.length


class Told(Reader):
    """Stays at its end until it is told another epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.index = epoch, 0

    def __iter__(self) -> Iterator[int]:
        while self.index < self.length:
            self.index += 1
            yield self.epoch * 100 + self.index - 1

    def state_dict(self) -> dict[str, int]:
        return {"index": self.index, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.index, self.epoch = state["index"], state["epoch"]


class Stream(Reader, IterableDataset[int]):
    """The same in a DataLoader."""


class Order(Reader, Sampler[int]):
    """A sampler with a state."""

    def __iter__(self) -> Iterator[int]:
        return (index % 100 for index in super().__iter__())

    def __len__(self) -> int:
        return self.length


SOURCES: dict[str, Callable[[int], Any]] = {
    "reader": Reader,
    "sized reader": SizedReader,
    "told reader": Told,
    "list": lambda length: list(range(length)),
    "function": lambda length: lambda: iter(range(length)),
    "iterable": lambda length: dict.fromkeys(range(length)).keys(),
    "nodes": lambda length: nodes.Loader(nodes.SamplerWrapper(range(length)), restart_on_stop_iteration=False),
    "stream": lambda length: DataLoader(Stream(length), batch_size=1),
    "sampler": lambda length: DataLoader(range(length), batch_size=1, sampler=Order(length)),  # type: ignore[arg-type]  # map-style
}
DATA_LOADERS = {"stream", "sampler"}  # each of their elements is a whole batch, so a step takes one per rank


class Case(NamedTuple):
    """A source of so many elements, of which a step takes so many over all ranks."""

    source: str
    length: int
    step: int
    ranks: int
    tail: str = "drop"
    ack: str = "auto"

    def loader(self, rank: int = 0) -> resumable.Loader:
        options: dict[str, Any] = {"world": World(rank, self.ranks), "ack": self.ack}
        if self.source in DATA_LOADERS:
            options["shard"] = True
        else:
            options |= {"batch_size": self.step // self.ranks, "tail": self.tail}
        return resumable.wrap(SOURCES[self.source](self.length), **options)

    def resumed(self, state: Any, rank: int = 0) -> resumable.Loader:
        loader = self.loader(rank)
        loader.load_state_dict(state)
        return loader

    @property
    def steps(self) -> int:
        return self.length // self.step if self.tail == "drop" else -(-self.length // self.step)


@st.composite
def cases(draw: st.DrawFn, source: str, ack: str) -> Case:
    ranks = draw(st.integers(1, 3))
    step = ranks * (1 if source in DATA_LOADERS else draw(st.integers(1, 3)))
    tail = draw(st.sampled_from(["drop", "partial"] if ranks == 1 else ["drop"]))
    return Case(source, draw(st.integers(step, 4 * step)), step, ranks, tail, ack)


# ------------------------------------------------------------------ forms of the loop; each stops at the last step


def to_the_end(loader: resumable.Loader, _: int) -> Iterator[tuple[int, Any]]:
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch:
            yield epoch.number, batch
            answer(loader)


def break_in_epochs(loader: resumable.Loader, steps: int) -> Iterator[tuple[int, Any]]:
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch if loader.cursor.step < steps else ():
            yield epoch.number, batch
            answer(loader)
            if loader.cursor.step == steps:
                break


def break_in_plain(loader: resumable.Loader, steps: int) -> Iterator[tuple[int, Any]]:
    done = loader.cursor.epoch * steps + loader.cursor.step
    while done < EPOCHS * steps:
        for batch in loader:
            yield loader.cursor.epoch, batch
            answer(loader)
            done += 1
            if done % steps == 0:
                break


def end_by_hand(loader: resumable.Loader, steps: int) -> Iterator[tuple[int, Any]]:
    while loader.acknowledged.epoch < EPOCHS:
        epoch = loader.acknowledged.epoch
        for _, batch in zip(range(steps - loader.cursor.step), loader, strict=False):
            yield epoch, batch
            answer(loader)
        loader.end_epoch()


def answer(loader: resumable.Loader) -> None:
    if loader.ack_mode == "manual":
        loader.ack()


FORMS = (to_the_end, break_in_epochs, break_in_plain, end_by_hand)


def run_through(loader: resumable.Loader, form: Any, steps: int) -> tuple[Run, list[Any]]:
    """Run to the end; return the epoch and the digest of each batch, and the state taken at each."""
    run: Run = []
    states = []
    for epoch, batch in form(loader, steps):
        run.append((epoch, digest(batch)))
        states.append(loader.state_dict())
    return run, states


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
@pytest.mark.parametrize("ack", ["auto", "manual"])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("source", SOURCES)
@settings(max_examples=2, deadline=None)
@given(st.data())
def test_no_epoch_is_empty_or_short(source: str, form: Any, ack: str, data: st.DataObject) -> None:
    case = data.draw(cases(source, ack))
    for rank in range(case.ranks):
        whole, _ = run_through(case.loader(rank), to_the_end, case.steps)
        assert [epoch for epoch, _ in whole] == [epoch for epoch in range(EPOCHS) for _ in range(case.steps)]
        run, states = run_through(case.loader(rank), form, case.steps)
        assert run == whole
        for number, state in enumerate(states, start=int(ack == "auto")):
            rest, _ = run_through(case.resumed(state, rank), form, case.steps)
            assert rest == whole[number:], f"resumed after {number} batches"


@pytest.mark.parametrize("source", SOURCES)
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_an_epoch_after_one_that_was_left_is_not_empty(source: str, data: st.DataObject) -> None:
    case = data.draw(cases(source, "auto"))
    leave_at = data.draw(st.integers(1, case.steps), "step at which each epoch is left")
    whole, states = run_through(case.loader(), break_in_epochs, leave_at)
    assert {epoch for epoch, _ in whole} == set(range(EPOCHS))
    for number, state in enumerate(states, start=1):
        rest, _ = run_through(case.resumed(state), break_in_epochs, leave_at)
        assert rest == whole[number:], f"resumed after {number} batches"


@pytest.mark.parametrize("source", ["reader", "sized reader", "told reader", "list", "nodes", "stream", "sampler"])
@pytest.mark.parametrize("tail", ["drop", "partial"])
def test_next_epoch_after_the_last_batch(source: str, tail: str) -> None:
    """After an epoch's last batch, the loader is in the next one.

    So that `range(loader.epoch, EPOCHS)` trains as many epochs as are left; where the end can be known.
    """
    case = Case(source, 8, 2 if source not in DATA_LOADERS else 1, 1, tail)
    loader = case.loader()
    for done in range(1, EPOCHS + 1):
        state = [loader.state_dict() for _ in zip(range(case.steps), loader, strict=False)][-1]
        resumed = case.resumed(state)
        assert resumed.epoch == done
        assert sum(1 for _ in range(resumed.epoch, EPOCHS) for _ in resumed) == (EPOCHS - done) * case.steps


class Rare(Reader):
    """A backend whose snapshots are costly, so that few are taken in advance."""

    kind = "rare"
    identity: ClassVar = {"name": "rare"}
    traits = resumable.Traits(snapshot_every=100)

    def open(self, epoch: int) -> Iterator[int]:
        return iter(self)

    def snapshot(self) -> dict[str, int]:
        return self.state_dict()

    def restore(self, epoch: int, snapshot: dict[str, int]) -> Iterator[int]:
        self.load_state_dict(snapshot)
        return iter(self)


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
def test_draw_to_see_the_end_is_given_back() -> None:
    """A draw that finds out whether an epoch is over is given back.

    No snapshot is taken of a source that is an element ahead.
    """
    loader = resumable.wrap(Rare(8), ack="manual")
    for _ in zip(range(2), loader, strict=False):
        loader.ack()
    loader.end_epoch()
    resumed = resumable.wrap(Rare(8), ack="manual")
    resumed.load_state_dict(loader.state_dict())
    assert [*loader] == [*resumed] == [2, 3, 4, 5, 6, 7]
