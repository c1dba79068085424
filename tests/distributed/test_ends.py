"""No rank runs out earlier than others and leaves them waiting: for every tail, and every kind of source."""

from __future__ import annotations

import time
from typing import Any

import pytest
from forked import HUNG, ranks, step_together
from torch import distributed
from torch.utils.data import DataLoader, IterableDataset

import resumable
from resumable.errors import RankMismatchError

pytestmark = pytest.mark.slow  # ranks are processes

LENGTHS = {  # elements of each rank's own stream, and how many steps of 2 all ranks do
    "the last is shorter": ([28, 24, 20], 10),
    "the first is shorter": ([20, 28, 24], 10),
    "a part of a batch": ([22, 21, 23], 10),
    "all are alike": ([20, 20, 20], 10),
}


class Numbers(IterableDataset[int]):
    """A stream of a length of its own, with or without a state."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Any:
        return iter(range(self.length))


def own_source(kind: str, length: int) -> tuple[Any, dict[str, Any]]:
    options: dict[str, Any] = {"shard": False, "tail": "drop"}
    if kind == "DataLoader":
        return DataLoader(Numbers(length), batch_size=2, drop_last=True), {"shard": False}
    if kind == "state":
        return Stateful(length), {**options, "batch_size": 2}
    return lambda: iter(range(length)), {**options, "identity": "numbers", "batch_size": 2}


class Stateful:
    """An iterable with a state of its own."""

    def __init__(self, length: int) -> None:
        self.length, self.at = length, 0

    def __iter__(self) -> Any:
        while self.at < self.length:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def own_run(rank: int, _size: int, kind: str, lengths: list[int], cut: int | None) -> Any:
    source, options = own_source(kind, lengths[rank])
    loader, batches = resumable.wrap(source, **options), []
    for step, batch in enumerate(loader.steps(20)):
        batches.append([int(number) for number in batch])
        step_together()
        if step + 1 == cut:
            break
    if cut is not None:
        state = loader.state_dict()
        distributed.barrier()
        source, options = own_source(kind, lengths[rank])
        loader = resumable.wrap(source, **options)
        loader.load_state_dict(state)
        for batch in loader.steps(20):
            batches.append([int(number) for number in batch])
            step_together()
    distributed.barrier()
    return batches


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("kind", ["generator", "DataLoader"])
def test_streams_of_their_own_end_together(kind: str, lengths: str) -> None:
    given, steps = LENGTHS[lengths]
    epoch = [[2 * step, 2 * step + 1] for step in range(steps)]
    assert ranks(3, own_run, kind, given, None) == [epoch * 2] * 3


@pytest.mark.parametrize("cut", [1, 9, 10, 11])
@pytest.mark.parametrize("kind", ["generator", "state"])
def test_they_do_so_in_a_run_that_is_resumed(kind: str, cut: int) -> None:
    given, _ = LENGTHS["the first is shorter"]
    whole = ranks(3, own_run, kind, given, None)
    assert all(isinstance(result, list) and len(result) == 20 for result in whole), whole
    assert ranks(3, own_run, kind, given, cut) == whole


def shared_run(rank: int, _size: int, lengths: list[int]) -> Any:
    source = lambda: iter(range(lengths[rank]))  # noqa: E731  # a function that makes the source
    loader = resumable.wrap(source, identity="numbers", batch_size=2, tail="drop")
    count = 0
    try:
        for epoch in loader.epochs(2):
            for _ in epoch:
                count += 1
                step_together()
    except RankMismatchError as error:
        return str(error)
    except RuntimeError as error:
        return f"left alone: {error}"
    return count


@pytest.mark.parametrize(("lengths", "told"), [([20, 28], "24 or more"), ([28, 20], "24 or more"), ([20, 21], "21")])
def test_shared_stream_with_two_ends(lengths: list[int], told: str) -> None:
    """A shared stream that ends differently is told with both counts."""
    results = ranks(2, shared_run, lengths, host_stays=False)
    longer = lengths.index(max(lengths))
    counts = {longer: told, 1 - longer: "20"}
    both = "\n".join(f"  rank {rank}: {counts[rank]} elements in epoch 0" for rank in (0, 1))
    named = [result for result in results if isinstance(result, str) and both in result]
    assert named, results
    assert all(isinstance(result, str) and result != HUNG for result in results)


def test_a_shared_stream_that_is_right_ends_as_it_does_alone() -> None:
    assert ranks(3, shared_run, [20, 20, 20]) == [6, 6, 6]


def tails_run(_rank: int, size: int) -> Any:
    counts = {}
    for tail in ("partial", "drop", "pad", "carry", "pad_ranks", "drop_ranks"):
        for length in (24, 28, 29):
            loader = resumable.wrap(list(range(length)), batch_size=2, tail=tail, name=f"{tail} {length}")
            counts[tail, length] = [len([step_together() for _ in epoch]) for epoch in loader.epochs(3)]
            assert step_together() == size
    return counts


def test_every_tail_gives_the_ranks_as_many_batches() -> None:
    results = ranks(3, tails_run)
    assert isinstance(results[0], dict), results
    assert results == [results[0]] * 3
    assert results[0]["partial", 29] == [5, 5, 5]


def broken_off_run(rank: int, _size: int) -> Any:
    """One rank leaves its loop: none waits for it in the loader."""
    loader = resumable.wrap(lambda: iter(range(40)), identity="numbers", batch_size=2, tail="drop", shard=True)
    began, count = time.monotonic(), 0
    for _ in loader:
        count += 1
        if rank == 0 and count == 3:
            break
    return count, time.monotonic() - began


def test_a_loop_that_one_rank_leaves_hangs_no_other() -> None:
    (first, _), (second, seconds) = ranks(2, broken_off_run)
    assert (first, second) == (3, 10)
    assert seconds < 8
