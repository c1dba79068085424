"""Logical streams on several ranks: each rank reads its own, and all together the batches of one rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from logical_data import EPOCHS, Replayed, Stateful, make

import resumable
from resumable import World
from resumable.errors import DataError, StateMismatchError, UnevenBatchError
from resumable.testing import digest, rest_of_run

STREAMS = 4
SOURCES: dict[str, type[Replayed]] = {"replayed": Replayed, "stateful": Stateful}
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # more than there are cores
each_source = pytest.mark.parametrize("source", SOURCES)
Ranks = list[resumable.Loader[Any]]


def ranks(source: str, size: int, workers: int = 0, *lengths: int, **options: Any) -> Ranks:
    return [
        make(
            SOURCES[source](*(lengths or (5,))),
            workers,
            {"seed": 0, "streams": STREAMS, "world": World(rank, size), "on_change": "keep_local", **options},
        )
        for rank in range(size)
    ]


def together(loaders: Ranks) -> list[tuple[int, str]]:
    """The batches of all ranks, in the order of the ranks in every step."""
    return [one for step in zip(*(rest_of_run(loader, EPOCHS) for loader in loaders), strict=True) for one in step]


def shares(loaders: Ranks) -> list[list[tuple[int, str]]]:
    """The batches of each step, whichever rank has them."""
    return [sorted(step) for step in zip(*(rest_of_run(loader, EPOCHS) for loader in loaders), strict=True)]


def run_and_states(loaders: Ranks) -> tuple[list[tuple[int, str]], list[list[Any]]]:
    """The batches, and the states of all ranks after each step."""
    run, states = [], []
    for epochs in zip(*(loader.epochs(EPOCHS) for loader in loaders), strict=True):
        for batches in zip(*epochs, strict=True):
            run += [(epochs[0].number, digest(batch)) for batch in batches]
            states.append([loader.state_dict() for loader in loaders])
    return run, states


@each_source
@pytest.mark.parametrize("size", [2, 4])
def test_the_steps_of_all_ranks_are_those_of_one(source: str, size: int) -> None:
    assert together(ranks(source, size)) == rest_of_run(ranks(source, 1)[0], EPOCHS)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_rank_has_the_same_batches_with_any_number_of_workers(workers: int) -> None:
    run, states = run_and_states(ranks("stateful", 2))
    assert run_and_states(ranks("stateful", 2, workers))[0] == run
    for step in (1, len(states) // 2, len(states) - 2):
        loaders = ranks("stateful", 2, workers)
        load(loaders, states[step])
        assert together(loaders) == run[2 * (step + 1) :]


def load(loaders: Ranks, states: list[Any]) -> None:
    for loader, state in zip(loaders, states, strict=True):
        loader.load_state_dict(state)


@each_source
def test_each_rank_reads_its_own_streams_only(source: str) -> None:
    first, second = ([int(batch[1][0]) % 100 for batch in loader] for loader in ranks(source, 2))
    assert (first, second) == ([0, 2] * 3, [1, 3] * 3)


@each_source
@pytest.mark.parametrize("size", [1, 2, 4])
def test_resumed_at_every_step_on_as_many_ranks(source: str, size: int) -> None:
    run, states = run_and_states(ranks(source, size))
    for step, of_ranks in enumerate(states, start=1):
        loaders = ranks(source, size)
        load(loaders, of_ranks)
        assert [digest(loader.state_dict()) for loader in loaders] == [digest(state) for state in of_ranks]
        assert together(loaders) == run[size * step :], f"resumed after {step} steps"


SIZES = [(old, new) for old in (1, 2, 4) for new in (1, 2, 4) if old != new]


@pytest.mark.parametrize(("old", "new"), SIZES)
@pytest.mark.parametrize("rank", [0, -1])
def test_replayed_streams_on_other_ranks(old: int, new: int, rank: int) -> None:
    """Replayed streams continue from the state of any rank on other ranks.

    Also where the epoch has no whole step of all ranks at its end: its last batches are left out.
    """
    run, states = run_and_states(ranks("replayed", old))
    each = len(run) // EPOCHS
    for step, of_ranks in enumerate(states, start=1):
        loaders, done = ranks("replayed", new), old * step
        load(loaders, [of_ranks[rank]] * new)
        left = (each - done) % new if done < each else (2 * each - done) % new
        end = each if done < each else 2 * each
        rest = [run[start : start + new] for start in (*range(done, end - left, new), *range(end, len(run), new))]
        assert shares(loaders) == list(map(sorted, rest)), f"resumed after {step} steps"


@pytest.mark.parametrize("new", [2, 4])
def test_streams_divided_from_one_state(new: int) -> None:
    """Streams with a state are divided from the state of one rank."""
    run, states = run_and_states(ranks("stateful", 1))
    for step in range(new, len(run) // EPOCHS + 1, new):
        loaders = ranks("stateful", new)
        load(loaders, states[step - 1] * new)
        assert together(loaders) == run[step:], f"resumed after {step} batches"


@pytest.mark.parametrize(("new", "rank"), [(1, 0), (2, 1), (4, 1), (4, 3)])
def test_streams_with_a_state_that_another_rank_has_are_refused(new: int, rank: int) -> None:
    run, states = run_and_states(ranks("stateful", 2))
    loader = ranks("stateful", new)[rank]
    loader.load_state_dict(states[1][0])
    with pytest.raises(StateMismatchError, match=r"the dataset's state for some(.*\n)*.*: \[0, 2\](.*\n)*.*replay"):
        next(iter(loader))
    loaders = ranks("stateful", new, resume="replay")
    load(loaders, [states[1][0]] * new)
    assert together(loaders) == run[4:]


def test_the_number_of_ranks_is_not_changed_unasked() -> None:
    state = run_and_states(ranks("replayed", 2))[1][0][0]
    loader = ranks("replayed", 1, on_change="keep_global")[0]
    with pytest.raises(StateMismatchError, match=r"Restart with 2 ranks, or pass wrap\(\.\.\., on_change=.keep_local"):
        loader.load_state_dict(state)


# ---------------------------------------------------------------------- streams of different lengths


@pytest.mark.parametrize(("lengths", "steps"), [((5, 5, 9, 5), 6), ((9, 5, 5, 5), 7), ((5, 5, 5, 1), 3)])
def test_a_rank_whose_streams_end_apart_stops_all(lengths: tuple[int, ...], steps: int) -> None:
    """Before that step: its state is that of before."""
    uneven = next(index % 2 for index in range(STREAMS) if lengths[index] != 5)
    loader = ranks("replayed", 2, 0, *lengths)[uneven]
    got, state = 0, loader.state_dict()
    with pytest.raises(DataError, match=r"different numbers of batches: stream \d has ended(.*\n)*.*shard"):
        for _ in loader:
            got, state = got + 1, loader.state_dict()
    assert got == steps
    again = ranks("replayed", 2, 0, *lengths)[uneven]
    again.load_state_dict(state)
    with pytest.raises(DataError, match="streams have different numbers of batches"):
        list(again)


def test_where_every_rank_reads_all_streams_they_may_end_apart() -> None:
    lengths = (5, 8, 2, 9)
    alone = rest_of_run(ranks("stateful", 1, 0, *lengths)[0], EPOCHS)
    parts, states = run_and_states(ranks("stateful", 2, 0, *lengths, shard=True))
    each = len(alone) // EPOCHS
    assert each % 2
    assert parts == alone[: each - 1] + alone[each : 2 * each - 1]
    for step in range(2, each, 2):
        state = states[step // 2 - 1][1]
        one = ranks("stateful", 1, 0, *lengths)[0]
        one.load_state_dict(state)
        assert rest_of_run(one, EPOCHS) == alone[step:]


def test_a_place_between_streams_that_ended_is_not_divided() -> None:
    lengths = (5, 9, 5, 5)
    state = run_and_states(ranks("replayed", 1, 0, *lengths))[1][-1][0]
    uneven = run_and_states(ranks("replayed", 1, 0, *lengths))[1][13 - 1][0]
    loaders = ranks("replayed", 2, 0, *lengths)
    loaders[0].load_state_dict(uneven)
    with pytest.raises(StateMismatchError, match=r"some streams had(.*\n)*.*\[3, 4, 3, 3\](.*\n)*.*\[4, 3, 3, 3\]"):
        next(iter(loaders[0]))
    loaders[0].load_state_dict(state)  # the end of the epoch


def test_source_that_divides_itself() -> None:
    """A source that divides itself has all streams on each rank.

    Each rank is a world of its own, with keys of its own.
    """
    loaders = ranks("replayed", 2, 0, shard=False, streams=2)
    first, second = (torch.cat([batch[3] for batch in loader]) for loader in loaders)
    assert not torch.equal(first, second)
    state = loaders[0].state_dict()
    with pytest.raises(StateMismatchError, match="rank differs"):
        loaders[1].load_state_dict(state)


def test_streams_that_ranks_do_not_divide_are_refused() -> None:
    with pytest.raises(UnevenBatchError, match="4 streams cannot be divided evenly among 3 ranks"):
        list(ranks("replayed", 3)[0])
    assert len(list(ranks("replayed", 3, shard=True)[0])) == 4
