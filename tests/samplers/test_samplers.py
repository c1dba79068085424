"""What every sampler keeps: pure functions of (epoch, position), in any range, of plain options."""

from __future__ import annotations

import copy
import json
import pickle
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable.errors import ConfigurationError
from resumable.samplers import Blocks, PagedShuffle, Sampler, Sequential, Shuffle, Subset, Weighted

if TYPE_CHECKING:
    from collections.abc import Callable

deterministic = settings(derandomize=True, deadline=None, max_examples=60)

SAMPLERS: dict[str, Callable[[int], Sampler]] = {
    "sequential": lambda _: Sequential(6000),
    "shuffle": lambda seed: Shuffle(6000, seed=seed),
    "shuffle-short": lambda seed: Shuffle(50, seed=seed),
    "shuffle-part": lambda seed: Shuffle(10**15, seed=seed, num_samples=6000),
    "shuffle-laps": lambda seed: Shuffle(70, seed=seed, num_samples=6000),
    "subset": lambda seed: Subset(np.arange(0, 12_000, 2), Shuffle(6000, seed=seed)),
    "blocks": lambda seed: Blocks(6000, block=30, window=9, seed=seed),
    "blocks-of-shards": lambda seed: Blocks([1000, 0, 2001, 2999], block=7, window=90, seed=seed),
    "blocks-unequal": lambda seed: Blocks([1, 500, 499, 2000, 1000, 1500, 500], block=None, window=3, seed=seed),
    "paged": lambda seed: PagedShuffle(np.arange(6000) // 7, window=40, seed=seed),
    "paged-scattered": lambda seed: PagedShuffle(np.arange(6000) % 90, window=100, seed=seed),
    "weighted": lambda seed: Weighted(np.arange(300), seed=seed, num_samples=6000),
}
every = pytest.mark.parametrize("name", SAMPLERS)
random = pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "sequential"])


@every
@deterministic
@given(epoch=st.integers(0, 2**40), data=st.data())
def test_a_range_is_a_part_of_the_epoch(name: str, epoch: int, data: Any) -> None:
    sampler = SAMPLERS[name](5)
    start = data.draw(st.integers(0, sampler.length))
    stop = data.draw(st.integers(start, sampler.length))
    part = sampler.indices(epoch, start, stop)
    assert part.dtype == np.int64
    assert part.shape == (stop - start,)
    assert np.array_equal(part, SAMPLERS[name](5).indices(epoch, 0, sampler.length)[start:stop])


@every
def test_an_index_does_not_depend_on_what_was_asked_before(name: str) -> None:
    used, fresh = SAMPLERS[name](5), SAMPLERS[name](5)
    for epoch, start in [(0, 0), (7, 30), (0, 20), (3, 1), (2, 0), (0, 0), (7, 30)]:
        found = used.indices(epoch, start, start + 20)
        assert np.array_equal(found, SAMPLERS[name](5).indices(epoch, start, start + 20))
        found[:] = -1  # the caller's to keep
    assert np.array_equal(used.indices(0, 0, 50), fresh.indices(0, 0, 50))


@every
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda sampler: pickle.loads(pickle.dumps(sampler))])  # noqa: S301  # our own bytes
def test_samplers_travel_to_other_processes(name: str, copied: Callable[[Sampler], Sampler]) -> None:
    sampler = SAMPLERS[name](5)
    sampler.indices(1, 0, 50)
    other = copied(sampler)
    assert other.spec() == sampler.spec()
    assert np.array_equal(other.indices(1, 10, 50), sampler.indices(1, 10, 50))


@every
def test_samplers_follow_the_protocol_with_plain_specs(name: str) -> None:
    sampler = SAMPLERS[name](5)
    assert isinstance(sampler, Sampler)
    spec = sampler.spec()
    assert json.loads(json.dumps(spec)) == spec
    assert len(json.dumps(spec)) < 200
    assert re.fullmatch(r"[a-z0-9]+-v\d+", str(spec["name"]))
    assert spec["length"] == sampler.length
    assert spec == SAMPLERS[name](5).spec()
    assert type(sampler).__name__ in repr(sampler)


@random
def test_seed_and_epoch_change_the_order_and_are_not_the_same(name: str) -> None:
    places = [(seed, epoch) for seed in range(4) for epoch in range(4)]
    orders = {tuple(SAMPLERS[name](seed).indices(epoch, 0, 50).tolist()) for seed, epoch in places}
    assert len(orders) == len(places)
    assert SAMPLERS[name](1).spec() != SAMPLERS[name](2).spec()


def test_sequential_is_the_same_in_every_epoch() -> None:
    assert Sequential(10).indices(0, 2, 6).tolist() == Sequential(10).indices(9, 2, 6).tolist() == [2, 3, 4, 5]


@deterministic
@given(st.integers(1, 6000), st.integers(0, 2**64), st.integers(0, 10**6))
def test_shuffle_gives_every_sample_once(length: int, seed: int, epoch: int) -> None:
    order = Shuffle(length, seed=seed).indices(epoch, 0, length)
    assert np.array_equal(np.sort(order), np.arange(length))


@deterministic
@given(st.integers(1, 200), st.integers(1, 1000))
def test_more_samples_than_there_are_come_in_whole_shuffles(length: int, num_samples: int) -> None:
    order = Shuffle(length, seed=3, num_samples=num_samples).indices(2, 0, num_samples)
    for start in range(0, num_samples, length):
        lap = order[start : start + length]
        assert len(set(lap.tolist())) == len(lap)
    assert set(order.tolist()) <= set(range(length))


def test_laps_differ() -> None:
    order = Shuffle(100, num_samples=300).indices(0, 0, 300).reshape(3, 100)
    assert len({tuple(lap) for lap in order.tolist()}) == 3


def test_fewer_samples_are_the_beginning_of_the_whole_order() -> None:
    assert np.array_equal(Shuffle(9000, num_samples=40).indices(1, 0, 40), Shuffle(9000).indices(1, 0, 40))


def test_subset_selects_from_its_table() -> None:
    table = [40, 10, 30, 20]
    assert Subset(table, Sequential(4)).indices(0, 1, 4).tolist() == [10, 30, 20]
    assert sorted(Subset(table, Shuffle(4)).indices(0, 0, 4).tolist()) == sorted(table)
    assert Subset(np.array(table, dtype=np.uint8), Sequential(3)).indices(0, 0, 3).dtype == np.int64
    assert Subset(table, Weighted([0, 0, 1, 0])).indices(0, 0, 4).tolist() == [30] * 4


def test_the_spec_of_a_subset_depends_on_every_table() -> None:
    tables: list[list[list[int]]] = [[[5, 6]], [[6, 5]], [[0, 1], [5, 6]], [[0, 1], [6, 5]], [[1, 0], [5, 6]]]
    specs = set()
    for chosen in tables:
        sampler: Sampler = Shuffle(2)
        for table in chosen:
            sampler = Subset(table, sampler)
        specs.add(json.dumps(sampler.spec()))
    assert len(specs) == len(tables)


@pytest.mark.parametrize("length", [0, -4, 1.0, "10", 2**62 + 1])
@pytest.mark.parametrize(
    "make",
    [
        Sequential,
        Shuffle,
        Blocks,
        lambda length: Shuffle(5, num_samples=length),
        lambda n: Weighted([1], num_samples=n),
    ],
)
def test_a_bad_length_is_refused(make: Callable[[Any], Sampler], length: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"must be (an integer of 1 or more|at most 2\*\*62)") as caught:
        make(length)
    assert f"but it is {length!r}" in str(caught.value)


@pytest.mark.parametrize("seed", [-1, 0.5, "0", None, True])
@pytest.mark.parametrize(
    "make",
    [lambda seed: Shuffle(5, seed=seed), lambda seed: Blocks(5, seed=seed), lambda seed: Weighted([1, 2], seed=seed)],
)
def test_a_bad_seed_is_refused(make: Callable[[Any], Sampler], seed: Any) -> None:
    with pytest.raises(ConfigurationError, match="the seed must be an integer of 0 or more") as caught:
        make(seed)
    assert f"but it is {seed!r}" in str(caught.value)


@every
@pytest.mark.parametrize(("start", "more"), [(-1, 0), (0, 1), (3, -6000)])
def test_positions_outside_of_the_epoch_are_refused(name: str, start: int, more: int) -> None:
    sampler = SAMPLERS[name](5)
    stop = sampler.length + more
    message = rf"positions {start}\.\.{stop} were requested, but an epoch has the positions 0\.\.{sampler.length}\."
    with pytest.raises(ConfigurationError, match=message):
        sampler.indices(0, start, stop)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ([1.0, 2.0], "dtype float64, shape (2,), minimum 1.0 and maximum 2.0"),
        ([[1, 2]], "dtype int64, shape (1, 2), minimum 1 and maximum 2"),
        ([3, -1], "dtype int64, shape (2,), minimum -1 and maximum 3"),
        (np.array([0, 2**63], dtype=np.uint64), "maximum 9223372036854775808"),
        ([0, 2**64], "dtype object, shape (2,)."),
        ([True, False], "dtype bool"),
        (["a"], "shape (1,)."),
        (7, "dtype int64, shape ()"),
    ],
)
def test_a_bad_table_is_refused(table: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match="the indices of a subset must be integers") as caught:
        Subset(table, Sequential(1))
    assert told in str(caught.value)


def test_an_empty_table_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"the number of indices of a subset must be .* but it is 0"):
        Subset([], Sequential(1))


def test_an_inner_sampler_over_more_than_the_table_is_refused() -> None:
    subset = Subset([5, 6, 7], Sequential(9))
    assert subset.indices(0, 0, 3).tolist() == [5, 6, 7]
    with pytest.raises(ConfigurationError, match=r"numbered 0\.\.2, but .* requests numbers 2\.\.4"):
        subset.indices(0, 2, 5)
