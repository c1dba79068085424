"""Another number of ranks: the global batch stays, or the batch of each rank does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import resumable
from resumable import World
from resumable.errors import ConfigurationError, StateFormatError, StateMismatchError, UnevenBatchError

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLES = list(range(48))


def make(ranks: int, rank: int = 0, **options: Any) -> resumable.Loader[Any]:
    options = {"batch_size": 4, "seed": 7, "shuffle": True, "on_change": "keep_local", **options}
    return resumable.wrap(SAMPLES, world=World(rank, ranks), **options)


def step(loaders: list[resumable.Loader[Any]]) -> list[int]:
    return [sample for loader in loaders for sample in next(iter(loader))]


def resumed(ranks: int, state: Any, **options: Any) -> list[resumable.Loader[Any]]:
    loaders = [make(ranks, rank, **options) for rank in range(ranks)]
    for loader in loaders:
        loader.load_state_dict(state)
    return loaders


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
def test_each_rank_keeps_its_batch_and_the_order_stays() -> None:
    order = [sample for epoch in make(1).epochs(2) for batch in epoch for sample in batch]
    state, got, accumulations = None, [], []
    for ranks in (4, 2, 3, 1, 1, 2, 4, 4):
        loaders = resumed(ranks, state) if state else [make(ranks, rank) for rank in range(ranks)]
        got += step(loaders)
        assert {loader.global_batch_size for loader in loaders} == {4 * ranks}
        accumulations.append({loader.accumulation for loader in loaders})
        states = [loader.state_dict() for loader in loaders]
        assert all(one == states[0] for one in states)
        state = states[0]
    assert got == order[: len(got)]
    assert accumulations == [{1}, {2}, {None}, {4}, {4}, {2}, {1}, {1}]


def test_global_batch_is_kept() -> None:
    """The global batch is kept, unless the user asks otherwise."""
    (alone,) = [make(4)]
    next(iter(alone))
    state = alone.state_dict()
    (one,) = resumed(1, state, on_change="keep_global")
    assert (len(next(iter(one))), one.accumulation) == (16, 1)
    with pytest.raises(UnevenBatchError, match='on_change="keep_local"'):
        resumed(17, state, on_change="keep_global")


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
@pytest.mark.parametrize(
    ("on_change", "ranks", "batch_size", "step_of"),
    [
        ("keep_global", 3, 4, [2, 3, 3]),  # shares differ by one sample
        ("keep_global", 4, 2, [2] * 4),  # the product stays
        ("keep_global", 2, 5, None),
        ("keep_local", 3, 4, [4] * 3),
        ("keep_local", 3, 5, None),
        ("continue", 3, 4, [4] * 3),
        ("continue", 2, 5, [5] * 2),
        ("continue", 3, 5, [5] * 3),
    ],
)
def test_what_stays_if_ranks_or_batch_size_are_others(
    on_change: str, ranks: int, batch_size: int, step_of: list[int] | None
) -> None:
    order = [sample for epoch in make(1).epochs(1) for batch in epoch for sample in batch]
    before = [make(2, rank) for rank in range(2)]
    seen, state = step(before), before[0].state_dict()
    if step_of is None:
        with pytest.raises(StateMismatchError, match='the batch size differs(.|\n)*on_change="continue"'):
            resumed(ranks, state, batch_size=batch_size, on_change=on_change)
        return
    after = resumed(ranks, state, batch_size=batch_size, on_change=on_change)
    parts = [next(iter(loader)) for loader in after]
    assert [len(part) for part in parts] == step_of
    seen += [sample for part in parts for sample in part]
    assert seen == order[: len(seen)]


def test_another_batch_size_is_still_refused() -> None:
    loader = make(4)
    next(iter(loader))
    with pytest.raises(StateMismatchError, match="the batch size differs"):
        resumed(2, loader.state_dict(), batch_size=5)


def test_elements_that_are_whole_batches_are_resized() -> None:
    def loader(ranks: int, rank: int) -> resumable.Loader[Any]:
        world = World(rank, ranks)
        return resumable.wrap(lambda: iter(SAMPLES), identity="n", world=world, on_change="keep_local", shard=True)

    two = [loader(2, rank) for rank in range(2)]
    assert [next(iter(one)) for one in two] == [0, 1]
    three = [loader(3, rank) for rank in range(3)]
    for one in three:
        one.load_state_dict(two[0].state_dict())
    assert [next(iter(one)) for one in three] == [2, 3, 4]


def test_bookmark_is_of_its_place() -> None:
    """A bookmark is of its place, whatever is loaded afterwards."""
    loader = make(2)
    next(iter(loader))
    expected, bookmark = loader.state_dict(), loader.progress.bookmark()
    other = make(4)
    next(iter(other))
    loader.load_state_dict(other.state_dict())
    assert loader.state_dict()["journal"]
    assert bookmark.state_dict() == expected


@pytest.mark.parametrize(
    "entry",
    [[[0, 4], {"global_batch": [16]}], [[0, -1], {"global_batch": [16, 8]}], [[0, 4], 1], [[0, 4], {}], 3],
)
def test_a_damaged_journal_is_refused(entry: Any) -> None:
    loader = make(2)
    state = {**loader.state_dict(), "journal": [entry], "digest": None}
    with pytest.raises(StateFormatError, match="truncated or damaged"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("length", [7, 10, 11, 13])
@pytest.mark.parametrize("tail", ["pad_ranks", "drop_ranks", "partial", "pad", "drop"])
@pytest.mark.parametrize(("before", "now"), [(2, 1), (1, 2), (2, 3), (3, 2), (6, 2), (3, 6)])
def test_finished_epoch_on_other_ranks(tail: Any, length: int, before: int, now: int) -> None:
    """An epoch that is over stays so on a different number of ranks.

    The position alone does not say so: for other ranks, the epoch may have a few samples more, or fewer.
    """

    def ranks(count: int) -> list[resumable.Loader[Any]]:
        options: dict[str, Any] = {"batch_size": 6 // count, "shuffle": True, "tail": tail}
        return [resumable.wrap(range(length), world=World(rank, count), **options) for rank in range(count)]

    run = ranks(before)[0]
    ended: dict[str, Any] | None = None
    try:
        for _ in run:
            ended = run.state_dict()
        whole = [[list(epoch) for epoch in loader.epochs(2)][1] for loader in ranks(now)]
    except ConfigurationError as error:
        assert "fewer than the" in str(error)  # noqa: PT017  # a last batch that leaves a rank without samples
        return
    assert ended is not None
    for loader, second in zip(ranks(now), whole, strict=True):
        loader.load_state_dict(ended)
        loader.load_state_dict(loader.state_dict())
        assert loader.samples_seen == ended["samples_seen"]
        assert loader.epoch == 1
        assert [list(epoch) for epoch in loader.epochs(2)] == [[], second]


class Reader:
    """Numbers with a state."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self) -> Iterator[int]:
        while self.given < len(SAMPLES):
            self.given += 1
            yield SAMPLES[self.given - 1]
        self.given = 0

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
@pytest.mark.parametrize(
    "source", [lambda: SAMPLES, lambda: lambda: iter(SAMPLES), Reader], ids=["list", "function", "own"]
)
def test_any_number_of_ranks_shares_the_batches_of_one(source: Any) -> None:
    """Shares differ by one sample at most, with a state that went through JSON."""

    def ranks(count: int) -> list[resumable.Loader[Any]]:
        options: dict[str, Any] = {"batch_size": 8, "tail": "drop", "identity": "n"}
        return [resumable.wrap(source(), world=World(rank, count), **options) for rank in range(count)]

    alone = [batch for epoch in ranks(1)[0].epochs(2) for batch in epoch]
    state, got = ranks(1)[0].state_dict(), []
    for count in (3, 5, 7, 1, 8, 6, 2, 5, 3, 4, 7):
        loaders = ranks(count)
        for loader in loaders:
            loader.load_state_dict(state)
        parts = [next(iter(loader)) for loader in loaders]
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        got.append([sample for part in parts for sample in part])
        states = [json.dumps(loader.state_dict()) for loader in loaders]
        assert len(set(states)) == 1
        state = json.loads(states[0])
    assert got == alone[:11]
