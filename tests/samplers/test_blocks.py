"""The shuffle in blocks: every sample once, few blocks at a time, and batches as even as the formula says."""

from __future__ import annotations

import json
import tracemalloc
from itertools import pairwise
from time import process_time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable.errors import ConfigurationError
from resumable.samplers import Blocks, PagedShuffle
from resumable.samplers.blocks import Shards, parse_sizes

deterministic = settings(derandomize=True, deadline=None, max_examples=40)
shards = st.lists(st.integers(0, 40), min_size=1, max_size=40).filter(any) | st.integers(1, 900)
options = st.fixed_dictionaries({"block": st.none() | st.integers(1, 45), "window": st.integers(1, 12)})


@deterministic
@given(sizes=shards, options=options, epoch=st.integers(0, 2**40))
def test_every_sample_once_in_its_own_blocks(sizes: Any, options: Any, epoch: int) -> None:
    """Every sample comes once, and a window has only its blocks."""
    sampler = Blocks(sizes, seed=1, **options)
    order = sampler.indices(epoch, 0, sampler.length)
    assert sorted(order.tolist()) == list(range(sampler.length))
    windows = sampler.blocks_of(epoch, 0, -(-sampler.blocks // sampler.window) - 1)
    assert [window.start for window in windows] == [0, *(window.stop for window in windows[:-1])]
    assert windows[-1].stop == sampler.length
    assert sorted(block for window in windows for block in window.blocks) == list(range(sampler.blocks))
    for window in windows:
        inside = np.concatenate([np.arange(*span) for span in sampler.spans(window.blocks)])
        assert np.array_equal(np.sort(order[window.start : window.stop]), np.sort(inside))


@deterministic
@given(sizes=shards, block=st.none() | st.integers(1, 45))
def test_a_block_is_of_one_shard(sizes: Any, block: int | None) -> None:
    sampler = Blocks(sizes, block=block)
    ends = np.cumsum([sizes] if isinstance(sizes, int) else sizes)
    first, stop = sampler.spans(np.arange(sampler.blocks)).T
    assert np.array_equal(first[1:], stop[:-1])
    assert np.all(stop - first <= (block or sampler.length))
    assert set(ends.tolist()) <= {0, *stop.tolist()}


@deterministic
@given(sizes=shards, options=options, epoch=st.integers(0, 9), data=st.data())
def test_what_is_to_be_fetched_is_known_at_every_position(sizes: Any, options: Any, epoch: int, data: Any) -> None:
    sampler = Blocks(sizes, **options)
    position, ahead = data.draw(st.integers(0, sampler.length)), data.draw(st.integers(0, 5))
    windows = sampler.blocks_of(epoch, position, ahead)
    assert len(windows) == ahead + 1
    at = (epoch, position) if position < sampler.length else (epoch + 1, 0)
    assert (windows[0].epoch, windows[0].start) <= at < (windows[0].epoch, windows[0].stop)
    for before, window in pairwise(windows):
        ended = before.stop == sampler.length
        assert (window.epoch, window.start) == ((before.epoch + 1, 0) if ended else (before.epoch, before.stop))
        assert len(window.blocks) <= sampler.window


def test_a_window_of_all_blocks_mixes_them_all() -> None:
    order = Blocks(64 * 64, window=64).indices(0, 0, 4096)
    assert 0.005 < np.mean(order[1:] // 64 == order[:-1] // 64) < 0.03, "of 64 blocks, one in 64 neighbours is of one"
    windows = {frozenset((Blocks(6400, window=10).indices(epoch, 0, 640) // 64).tolist()) for epoch in range(3)}
    assert len(windows) == 3


def test_pages_are_blocks() -> None:
    sizes = np.random.default_rng(0).integers(1, 50, 200)
    paged = PagedShuffle(np.repeat(np.arange(200), sizes), window=9, seed=4)
    blocks = Blocks(sizes, block=None, window=9, seed=4)
    assert np.array_equal(paged.indices(7, 0, paged.length), blocks.indices(7, 0, blocks.length))


def peak_of(sampler: Blocks, position: int) -> int:
    tracemalloc.start()
    sampler.indices(3, position, position + 4096)
    sampler.blocks_of(3, position, 4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("length", [10**6, 10**12, 2**62])
def test_time_and_memory_do_not_grow_with_the_data(length: int) -> None:
    sampler = Blocks(length, seed=5)
    assert peak_of(sampler, length // 2) < 2e6
    begin = process_time()
    for start in range(length // 3, length // 3 + 6400, 64):
        assert 0 <= sampler.indices(3, start, start + 64).max() < length
    assert process_time() - begin < 1, "100 batches, which take 0.02 s"


def test_shards_take_memory_by_their_number_alone() -> None:
    assert peak_of(Blocks(np.full(100_000, 10**7), block=64), 5 * 10**11) < 20e6


# ---------------------------------------------------------------------- how even batches are


def measured(sampler: Any, batch: int = 256, strata: int = 64, epochs: int = 1) -> float:
    """Chi-square per degree of freedom of the strata of a batch, for data that is sorted by stratum."""
    found = []
    for epoch in range(epochs):
        order = sampler.indices(epoch, 0, sampler.length // batch * batch).reshape(-1, batch)
        owner = order * strata // sampler.length
        counts = np.stack([(owner == stratum).sum(axis=1) for stratum in range(strata)], axis=1)
        found.append(((counts - batch / strata) ** 2 / (batch / strata)).sum(axis=1).mean() / (strata - 1))
    return float(np.mean(found))


@pytest.mark.parametrize(
    ("block", "window"), [(64, 16), (64, 64), (64, 512), (64, 4000), (256, 64), (256, 512), (1000, 64)]
)
def test_the_formula_says_how_even_batches_are(block: int, window: int) -> None:
    sampler = Blocks(256_000, block=block, window=window, seed=2)
    assert measured(sampler) == pytest.approx(sampler.unevenness(256), rel=0.1)


def test_many_small_blocks_are_better_than_few_large_ones() -> None:
    """The same 32,000 samples are held: 512 blocks of 64, or 32 of 1000."""
    small, large = Blocks(256_000, block=64, window=512), Blocks(256_000, block=1000, window=32)
    assert measured(small) < 1.5
    assert measured(large) > 7


@pytest.mark.parametrize("batch", [1, 8, 64, 256, 4096])
def test_the_window_that_the_loader_chooses_is_enough(batch: int) -> None:
    sampler = Blocks(10**9)
    bound = sampler.bound_to(batch)
    assert bound.window == max(512, 4 * batch)
    assert bound.unevenness(batch) <= 1.25
    assert not bound.doubt(batch)
    assert sampler.window == 512


@pytest.mark.parametrize(("length", "batch"), [(64_000, 256), (10**9, 256), (640, 64), (64 * 9, 512), (10**7, 2)])
def test_the_number_that_the_warning_says_would_do(length: int, batch: int) -> None:
    def doubt(window: int) -> str:
        return Blocks(length, window=window).doubt(batch)

    told = int(doubt(1).partition("window=")[2].partition(")")[0])
    assert not doubt(told)
    assert doubt(told - 1)
    assert Blocks(length, window=told).unevenness(batch) <= 1.25 < Blocks(length, window=told - 1).unevenness(batch)


# ---------------------------------------------------------------------- the spec


@deterministic
@given(sizes=shards, options=options)
def test_a_spec_that_lists_the_sizes_makes_the_same_order(sizes: Any, options: Any) -> None:
    sampler = Blocks(sizes, seed=3, **options)
    spec = json.loads(json.dumps(sampler.spec()))
    listed = parse_sizes(spec["sizes"]) if "sizes" in spec else spec["length"]
    if listed is not None:
        again = Blocks(listed, block=spec["block"], window=spec["window"], seed=spec["seed"])
        assert again.spec() == spec
        assert np.array_equal(again.indices(2, 0, again.length), sampler.indices(2, 0, sampler.length))


def test_sizes_are_short_or_a_digest() -> None:
    assert Shards([1000] * 99 + [417], 64).text == "1000x99,417"
    assert Shards([64] * 99 + [17], 64).text == ""
    assert Shards([0, 640, 0], 64).text == ""
    many = np.random.default_rng(0).integers(1, 10**6, 100)
    assert len(Shards(many, 64).text) == 16
    assert Shards(many, 64).text != Shards(many[::-1], 64).text
    assert parse_sizes(Shards(many, 64).text) is None


@pytest.mark.parametrize("text", ["5x0,1", "1x2000000,1", "x", ",", "1x2x3,1", "a,b", f"{2**63},1", "5x-1,3"])
def test_sizes_of_a_damaged_state_are_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_sizes(text)


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize("sizes", [[1.5], [[1, 2]], ["a"], [-1, 5], [True], [[1], [1, 2]], [2**64], [None]])
def test_bad_sizes_are_refused(sizes: Any) -> None:
    with pytest.raises(ConfigurationError, match="the sizes of the shards must be integers of 0 or more"):
        Blocks(sizes)


@pytest.mark.parametrize("sizes", [[], [0, 0], 0, -3, 1.5, None, "7", {"a": 1}])
def test_no_samples_are_refused(sizes: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be (an integer of 1 or more|integers of 0 or more)"):
        Blocks(sizes)


@pytest.mark.parametrize("value", [0, -1, 1.5, "2"])
@pytest.mark.parametrize("name", ["block", "window"])
def test_a_bad_block_or_window_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"the {name} of a block shuffle must be an integer .* but it is"):
        Blocks(100, **{name: value})


@pytest.mark.parametrize(("sizes", "block"), [([2**61, 2**61, 5], 64), ([2**61] + [1] * 9, None)])
def test_positions_that_would_overflow_are_refused(sizes: Any, block: int | None) -> None:
    with pytest.raises(ConfigurationError, match=r"2\*\*62"):
        Blocks(sizes, block=block)


def test_positions_outside_of_the_epoch_have_no_blocks() -> None:
    with pytest.raises(ConfigurationError, match="an epoch has the positions"):
        Blocks(100).blocks_of(0, 101)
