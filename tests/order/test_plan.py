"""Plans, and the order that resolves what they cut: the same in any process, in any thread, and after pickling."""

from __future__ import annotations

import pickle
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable import Cursor, World
from resumable._fetch.order import Order
from resumable._order.plan import Plan, Schedule, Segment, share
from resumable._randomness.keyed import BlockCache
from resumable._randomness.keys import SampleKeys
from resumable.samplers import Sequential, Shuffle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable import Request

SCHEDULES = st.builds(
    Schedule, st.integers(12, 60), st.integers(1, 12), st.sampled_from(["drop", "pad", "partial", "carry"])
)


@dataclass(frozen=True)
class Growing:
    """A plan of another kind: epoch `e` has `first + e` positions, and the last batch is smaller."""

    first: int
    global_batch: int

    def positions(self, epoch: int) -> int:
        return self.first + epoch

    def finished(self, cursor: Cursor) -> bool:
        return cursor.position >= self.positions(cursor.epoch)

    def advance(self, cursor: Cursor) -> Cursor:
        stop = min(cursor.position + self.global_batch, self.positions(cursor.epoch))
        return Cursor(cursor.epoch, stop, cursor.step + 1)

    def following(self, cursor: Cursor) -> Cursor:
        return Cursor(cursor.epoch + 1)

    def total(self, cursor: Cursor) -> int:
        return cursor.step - (cursor.position - self.positions(cursor.epoch)) // self.global_batch

    def beginning(self, epoch: int, here: Cursor) -> Cursor:
        return here if here.epoch == epoch else Cursor(epoch)

    def at(self, epoch: int, step: int) -> Cursor:
        return Cursor(epoch, min(step * self.global_batch, self.positions(epoch)), step)

    def segments(self, epoch: int, start: int, stop: int) -> Iterator[Segment]:
        yield Segment(epoch, start, stop, start)

    def share(self, before: Cursor, after: Cursor, world: World) -> tuple[int, int]:
        return share(before.position, after.position, world)

    def smallest(self, cursor: Cursor) -> int:
        return (self.positions(cursor.epoch) - cursor.position) % self.global_batch or self.global_batch

    def padding(self, start: int, stop: int) -> int:
        return 0


PLANS = st.one_of(SCHEDULES, st.builds(Growing, st.integers(12, 60), st.integers(1, 12)))


def requests(order: Order, epochs: int, world: World) -> list[Request]:
    found: list[Request] = []
    cursor = Cursor()
    for _ in range(epochs):
        asked = deque([cursor])
        found += order.rest_of_epoch(cursor, world, asked)
        cursor = order.plan.following(asked[-1])
    return found


def content(request: Request) -> list[Any]:
    return [request.indices.tolist(), request.keys.tolist(), request.batch_key, request.padding, request.size]  # type: ignore[union-attr]


@given(SCHEDULES, st.integers(0, 40), st.integers(1, 5))
def test_a_schedule_is_a_plan(schedule: Schedule, position: int, size: int) -> None:
    plan: Plan = schedule  # for mypy, which looks at the signatures
    assert isinstance(plan, Plan)
    assert pickle.loads(pickle.dumps(plan)) == plan == replace(schedule)  # noqa: S301  # our own bytes
    assert plan != replace(schedule, length=schedule.length + 1)
    assert plan.positions(3) == schedule.length
    cursor = Cursor(0, position % schedule.length)
    sizes = []
    while not plan.finished(cursor):
        after = plan.advance(cursor)
        shares = [plan.share(cursor, after, World(rank, size)) for rank in range(size)]
        assert [place for start, stop in shares for place in range(start, stop)] == [
            *range(cursor.position, after.position)
        ]
        assert plan.padding(cursor.position, after.position) == (
            max(after.position - schedule.length, 0) if schedule.tail == "pad" else 0
        )
        sizes.append(after.position - cursor.position)
        assert plan.smallest(Cursor(0, position % schedule.length)) <= sizes[-1]
        cursor = after
    assert not sizes or plan.smallest(Cursor(0, position % schedule.length)) == min(sizes)


@settings(max_examples=40)
@given(PLANS, st.integers(1, 3))
def test_requests_match_sampler_and_keys(plan: Plan, size: int) -> None:
    """Requests match the sampler and the keys at their positions.

    For every kind of plan: position by position, from the plan's segments alone.
    """
    length = 70 if isinstance(plan, Growing) else plan.positions(0)
    sampler = Shuffle(length, seed=3)
    for rank in range(size):
        for request in requests(Order(sampler, plan, 5), 3, World(rank, size)):
            places = [
                (piece.epoch, place, piece.counter + place - piece.start)
                for piece in plan.segments(request.epoch, request.start, request.stop)
                for place in range(piece.start, piece.stop)
            ]
            indices = [sampler.indices(epoch, place, place + 1)[0] for epoch, place, _ in places]
            keys = [SampleKeys(5, epoch).samples(counter, counter + 1)[0] for epoch, _, counter in places]
            batch_key = SampleKeys(5, request.epoch).batch(request.start)
            padding = plan.padding(request.start, request.stop)
            assert content(request) == [indices, keys, batch_key, padding, len(places)]


@given(PLANS, st.booleans())
def test_order_and_request_in_another_process(plan: Plan, keyed: bool) -> None:
    """Another process finds the same with a copy of the order or of the request."""
    order = Order(Shuffle(80, seed=1), plan, 2, keyed=keyed)
    asked = requests(order, 2, World(0, 1))
    bare = pickle.dumps(Order(Shuffle(80, seed=1), plan, 2, keyed=keyed))
    assert pickle.dumps(order) == bare, "the caches travel with it"
    copy = pickle.loads(bare)  # noqa: S301  # our own bytes
    for request in asked:
        assert content(request._replace(order=copy)) == content(request)
        listed = pickle.loads(pickle.dumps(request))  # noqa: S301  # our own bytes
        assert listed[:6] == request[:6]
        assert content(listed) == content(request)
        assert bool(len(request.keys)) is keyed


def test_a_listed_request_holds_its_samples_and_not_the_order() -> None:
    order = Order(Shuffle(100_000, seed=1), Schedule(100_000, 4, "drop"), 2)
    assert len(pickle.dumps(requests_of_one_step(order))) < 400


def requests_of_one_step(order: Order) -> Request:
    return next(order.rest_of_epoch(Cursor(), World(0, 1), deque()))


def test_another_plan_is_another_version() -> None:
    order = Order(Sequential(10), Schedule(10, 4, "partial"), 0)
    other = order.changed(Schedule(10, 5, "partial"))
    assert (order.version, other.version) == (0, 1)
    assert [request.version for request in requests(other, 1, World(0, 1))] == [1, 1]
    assert "Order 1" in repr(other)


def test_several_threads_may_ask_one_order() -> None:
    before = sys.getswitchinterval()
    cache = BlockCache(np.arange, 1 << 20)

    def take(number: int) -> bool:
        start = number % 7 * BlockCache.BLOCK + number
        return bool((cache.take(start, start + 5) == np.arange(start, start + 5)).all())

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(take, range(3000)))
    finally:
        sys.setswitchinterval(before)


def test_empty_ranges_at_block_borders() -> None:
    """Ranges without positions are empty, also at the border of a block."""
    for place in (0, 5, BlockCache.BLOCK):
        assert BlockCache(np.arange, 1 << 20).take(place, place).tolist() == []


@pytest.mark.parametrize(
    ("size", "period", "most"), [(64, 64, 1.3), (64, 128, 2.5), (64, 4096, 1), (64, 6400, 1), (1, 64, 70)]
)
def test_blocks_are_evaluated_where_most_of_them_is_asked_for(size: int, period: int, most: float) -> None:
    """A rank among many, whose ranges lie far apart, is spared the positions of the others."""
    evaluated = 0

    def values(start: int, stop: int) -> Any:
        nonlocal evaluated
        evaluated += stop - start
        return np.arange(start, stop)

    cache = BlockCache(values, 1 << 30)
    for start in range(1000, 1000 + 300 * period, period):
        assert cache.take(start, start + size).tolist() == list(range(start, start + size))
    assert evaluated <= most * 300 * size + 2 * BlockCache.BLOCK
    if most == 1:
        assert evaluated == 300 * size
