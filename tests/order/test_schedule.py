"""Coverage, disjointness and elastic equality, over random lengths, worlds, batch sizes, epochs, kills and resizes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import resumable
from resumable import Cursor, World
from resumable._order.plan import History, Schedule, check_share, share
from resumable.errors import ConfigurationError, UnevenBatchError

LENGTHS = st.integers(1, 60)
TAILS: st.SearchStrategy[Any] = st.sampled_from(["drop", "pad", "partial", "carry"])
OF_RANKS: st.SearchStrategy[Any] = st.sampled_from(["pad_ranks", "drop_ranks"])
SIZES = st.integers(1, 12)


def positions(schedule: Schedule, epochs: int) -> list[list[tuple[int, int]]]:
    """The (epoch, position) pairs of every global batch."""
    batches, cursor = [], Cursor()
    while cursor.epoch < epochs:
        if schedule.finished(cursor):
            cursor = schedule.following(cursor)
            continue
        after = schedule.advance(cursor)
        pieces = schedule.segments(cursor.epoch, cursor.position, after.position)
        batches.append([(piece.epoch, place) for piece in pieces for place in range(piece.start, piece.stop)])
        cursor = after
    return batches


@given(LENGTHS, SIZES, TAILS)
def test_every_epoch_covers_the_data_as_its_tail_policy_says(length: int, size: int, tail: Any) -> None:
    if tail in {"drop", "carry"} and size > length:
        with pytest.raises(ConfigurationError, match=f"{size} samples per step, {length} samples per epoch"):
            Schedule(length, size, tail)
        return
    batches = positions(Schedule(length, size, tail), 3)
    seen = Counter(pair for batch in batches for pair in batch)
    for epoch in range(3):
        counts = [seen[epoch, place] for place in range(length)]
        if tail in {"partial", "carry"}:
            assert counts == [1] * length
        elif tail == "drop":
            whole = length // size * size
            assert counts == [1] * whole + [0] * (length - whole)
        else:
            assert min(counts) >= 1
            assert sum(counts) == -(-length // size) * size
    assert {len(batch) for batch in batches if tail != "partial"} <= {size}


@given(LENGTHS, SIZES, OF_RANKS, st.integers(1, 9))
def test_the_tails_of_ranks_give_each_rank_as_many_samples(length: int, size: int, tail: Any, ranks: int) -> None:
    """`size` samples per rank and step; no batch leaves a rank out."""
    if tail == "drop_ranks" and ranks > length:
        with pytest.raises(ConfigurationError, match=f"{ranks} ranks, {length} samples per epoch"):
            Schedule(length, size * ranks, tail, ranks)
        return
    batches = positions(Schedule(length, size * ranks, tail, ranks), 2)
    seen = Counter(pair for batch in batches for pair in batch)
    assert not [batch for batch in batches if len(batch) % ranks or len(batch) > size * ranks]
    for epoch in range(2):
        counts = [seen[epoch, place] for place in range(length)]
        wanted = length // ranks * ranks
        if tail == "drop_ranks":
            assert counts == [1] * wanted + [0] * (length - wanted)
        else:
            assert min(counts) >= 1
            assert sum(counts) == -(-length // ranks) * ranks


@given(LENGTHS, SIZES, TAILS | OF_RANKS, st.integers(0, 4))
def test_total_at_and_following_agree_with_going_step_by_step(length: int, size: int, tail: Any, epoch: int) -> None:
    if tail in {"drop", "carry"} and size > length:
        return
    schedule, cursor = Schedule(length, size, tail), Cursor()
    for _ in range(epoch):
        while not schedule.finished(cursor):
            cursor = schedule.advance(cursor)
        cursor = schedule.following(cursor)
    total, step = schedule.total(cursor), 0
    history = History(Cursor(), schedule, schedule)
    assert history.locate(epoch, 0) == (cursor, schedule)
    assert history.total(epoch) == total
    while not schedule.finished(cursor):
        cursor, step = schedule.advance(cursor), step + 1
        assert history.locate(epoch, step) == (cursor, schedule)
        assert schedule.total(cursor) == total
    assert cursor.step == total
    with pytest.raises(
        ConfigurationError, match=rf"step {total + 1} does not exist\.\nBatches count from 0; step {total} is the end"
    ):
        history.locate(epoch, total + 1)


@given(LENGTHS, SIZES, TAILS, st.integers(0, 200), st.integers(1, 4))
def test_a_later_epoch_begins_where_the_run_will_come_to(
    length: int, size: int, tail: Any, start: int, epochs: int
) -> None:
    """Also in a run that left an epoch in its middle, or had another global batch before."""
    if tail in {"drop", "carry"} and size > length:
        return
    schedule = Schedule(length, size, tail)
    here = cursor = Cursor(2, start % length, 0)
    for _ in range(epochs):
        while not schedule.finished(cursor):
            cursor = schedule.advance(cursor)
        cursor = schedule.following(cursor)
    assert schedule.beginning(2 + epochs, here) == cursor
    assert schedule.beginning(2, here) == here
    assert schedule.beginning(1, here) == schedule.beginning(1, Cursor())


@given(st.integers(0, 1000), st.integers(1, 100), st.integers(1, 9))
def test_the_shares_of_the_ranks_are_the_batch_in_its_order(start: int, count: int, size: int) -> None:
    shares = [share(start, start + count, World(rank, size)) for rank in range(size)]
    assert [place for first, last in shares for place in range(first, last)] == list(range(start, start + count))
    widths = [last - first for first, last in shares]
    assert max(widths) - min(widths) <= 1


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.data())
def test_global_batches_under_kills_and_resizes(data: st.DataObject) -> None:
    """Global batches stay the same under any kills and resizes.

    Promise 3, first half: with the global batch kept, sample for sample, for every history.
    """
    size = data.draw(st.sampled_from([1, 2, 4, 6, 12]), "global batch")
    length = data.draw(st.integers(size, 50), "length")
    tail = data.draw(TAILS, "tail")
    if tail == "partial" and length % size:
        length -= length % size  # a smaller last batch may not be shared by all ranks; see the test below
    worlds = st.sampled_from([world for world in range(1, size + 1) if size % world == 0])

    def ranks(world: int) -> list[resumable.Loader]:
        return [
            resumable.wrap(range(length), batch_size=size, shuffle=True, tail=tail, seed=3, world=World(rank, world))
            for rank in range(world)
        ]

    (golden,) = ranks(1)
    state, total = golden.state_dict(), 3 * (length // size) + 2
    run = [next_batch(golden) for _ in range(total)]
    done = 0
    while done < total:
        loaders = ranks(data.draw(worlds, "ranks"))
        for loader in loaders:
            loader.load_state_dict(state)
        for _ in range(data.draw(st.integers(1, 5), "steps until the kill")):
            batch = [sample for loader in loaders for sample in next_batch(loader)]
            if done < total:
                assert batch == run[done]
            done += 1
        state = loaders[-1].state_dict()
        assert all(loader.state_dict()["cursor"] == state["cursor"] for loader in loaders)


@pytest.mark.filterwarnings("ignore:a loop over a resumed Loader")  # it counts no epochs
@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.data())
def test_order_stays_in_other_batch_sizes(data: st.DataObject) -> None:
    """The order of the samples stays when the batch size changes.

    Promise 3, second half: the borders move, the flattened order does not.
    """
    length = data.draw(st.integers(12, 50), "length")
    tail: Any = data.draw(st.sampled_from(["partial", "carry"]), "tail")
    golden = resumable.wrap(range(length), batch_size=1, shuffle=True, tail=tail)
    order = [sample for _ in range(3) for batch in golden for sample in batch]
    seen: list[int] = []
    state = None
    while len(seen) < 2 * length:
        loader = resumable.wrap(
            range(length),
            batch_size=data.draw(st.integers(1, 9), "batch size"),
            shuffle=True,
            tail=tail,
            on_change="continue",
        )
        if state is not None:
            loader.load_state_dict(state)
        for _ in range(data.draw(st.integers(1, 5), "steps until the kill")):
            seen += next_batch(loader)
        state = loader.state_dict()
    assert seen[: len(order)] == order[: len(seen)]


def next_batch(loader: resumable.Loader) -> list[int]:
    batch: list[int] = next(iter(loader))
    return batch


def test_a_batch_with_fewer_samples_than_ranks_is_refused() -> None:
    check_share(5, World(0, 5))
    with pytest.raises(UnevenBatchError, match="5 ranks cannot share a global batch of 3 samples.*\n.*at most 3 ranks"):
        check_share(3, World(0, 5))


def test_shares_may_differ_by_one_sample() -> None:
    state = resumable.wrap(range(24), batch_size=12).state_dict()
    loaders = [resumable.wrap(range(24), batch_size=12, world=World(rank, 5)) for rank in range(5)]
    for loader in loaders:
        loader.load_state_dict(state)
    shares = [next_batch(loader) for loader in loaders]
    assert [len(part) for part in shares] == [2, 2, 3, 2, 3]
    assert [sample for part in shares for sample in part] == list(range(12))


def test_a_last_batch_without_samples_for_some_rank_is_refused() -> None:
    loader = resumable.wrap(range(9), batch_size=4, seed=0, world=World(1, 2))
    with pytest.raises(ConfigurationError, match='has 1 samples, fewer than the 2 ranks.*\n.*tail="drop"'):
        next(iter(loader))
    assert len(list(resumable.wrap(range(10), batch_size=4, seed=0, world=World(1, 2)))) == 2
