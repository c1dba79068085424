"""Permutation: one-to-one for every length, the same by any range, and computed without memory."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from resumable._randomness.keyed import derive, random_int, random_u64
from resumable.errors import ConfigurationError
from resumable.samplers import Permutation

LONGEST = 1 << 62
deterministic = settings(derandomize=True, deadline=None, max_examples=150)

keys = st.lists(st.integers(-(2**70), 2**70), max_size=3)
short_lengths = st.integers(1, 10_000)
long_lengths = st.one_of(
    st.integers(4097, LONGEST),
    st.builds(lambda power, offset: min(2**power + offset, LONGEST), st.integers(13, 62), st.integers(-3, 3)),
)


@deterministic
@given(short_lengths, keys)
@example(1, [])
@example(4096, [0])
@example(4097, [0])
@example(8191, [0])
@example(8192, [0])
def test_every_sample_once(length: int, key: list[int]) -> None:
    order = Permutation(length, *key).range(0, length)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(length))


@pytest.mark.slow
@deterministic
@given(long_lengths, keys, st.data())
@example(LONGEST, [0], None)
def test_long_orders_are_one_to_one(length: int, key: list[int], data: Any) -> None:
    permutation = Permutation(length, *key)
    start = data.draw(st.integers(0, length - 64)) if data is not None else length - 64
    indices = permutation.range(start, start + 64).tolist()
    assert all(0 <= index < length for index in indices)
    assert len(set(indices)) == 64
    assert [permutation.inverse(index) for index in indices] == list(range(start, start + 64))


@deterministic
@given(long_lengths, keys, st.data())
def test_every_sample_has_a_position(length: int, key: list[int], data: Any) -> None:
    permutation = Permutation(length, *key)
    index = data.draw(st.integers(0, length - 1))
    position = permutation.inverse(index)
    assert permutation.range(position, position + 1).tolist() == [index]


@pytest.mark.parametrize("length", [1, 2, 5, 64, 4096, 4097])
def test_inverse_of_all_samples(length: int) -> None:
    permutation = Permutation(length, 3)
    order = permutation.range(0, length).tolist()
    chosen = range(0, length, max(1, length // 50))
    assert [permutation.inverse(order[position]) for position in chosen] == list(chosen)


@deterministic
@given(st.one_of(short_lengths, long_lengths), keys, st.data())
def test_a_range_is_a_part_of_any_other(length: int, key: list[int], data: Any) -> None:
    begin = data.draw(st.integers(0, length))
    end = min(length, begin + data.draw(st.integers(0, 5000)))
    start = data.draw(st.integers(begin, end))
    stop = data.draw(st.integers(start, end))
    whole = Permutation(length, *key).range(begin, end)
    part = Permutation(length, *key).range(start, stop)
    assert np.array_equal(part, whole[start - begin : stop - begin])


def test_calls_do_not_change_each_other() -> None:
    for length in (100, 10_000):
        one, other = Permutation(length, 1), Permutation(length, 2)
        expected = one.range(10, 60).tolist()
        other.range(0, 50)
        one.range(50, 100)[:] = 0
        one.inverse(3)
        assert one.range(10, 60).tolist() == expected


@pytest.mark.parametrize("length", [1000, 100_000])
def test_length_and_every_part_of_the_key_select_the_order(length: int) -> None:
    variants = [(length, 0, 0), (length, 0, 1), (length, 1, 0), (length, 0), (length, 0, 0, 0), (length + 1, 0, 0)]
    orders = {tuple(Permutation(*variant).range(0, 20).tolist()) for variant in variants}
    assert len(orders) == len(variants)


@pytest.mark.parametrize("length", [0, -1, 2.5, "7", None, LONGEST + 1, 1 << 64])
def test_a_bad_length_is_refused(length: Any) -> None:
    with pytest.raises(ConfigurationError, match="the length of a permutation must be") as caught:
        Permutation(length)
    assert repr(length) in str(caught.value)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 5001), (5001, 5002)])
def test_positions_outside_of_the_order_are_refused(start: int, stop: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"positions {start}\.\.{stop} .* positions 0\.\.5000\."):
        Permutation(5000).range(start, stop)


@pytest.mark.parametrize("length", [10, 5000])
@pytest.mark.parametrize("beyond", [-1, 5000])
def test_samples_outside_of_the_order_have_no_position(length: int, beyond: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"positions {beyond}\.\.{beyond + 1} .* positions 0\.\.{length}\."):
        Permutation(length).inverse(beyond)


@deterministic
@given(st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=2), st.lists(st.integers(0, 2**62), min_size=1))
def test_random_int_is_random_u64_of_one_counter(key: list[int], counters: list[int]) -> None:
    words = random_u64(np.array(key, dtype=np.uint64), counters)
    assert [random_int((key[0], key[1]), counter) for counter in counters] == words.tolist()


@deterministic
@given(st.lists(st.integers() | st.text(), max_size=4), st.lists(st.integers() | st.text(), max_size=4))
@example([1, 2], [12])
@example([1], ["1"])
@example([1], [1, 0])
@example([255], [-1])
@example(["ab"], ["a", "b"])
def test_different_parts_give_different_words(one: list[int | str], other: list[int | str]) -> None:
    words = derive(*one, words=2, purpose=b"test"), derive(*other, words=2, purpose=b"test")
    assert np.array_equal(*words) == (one == other)


def test_more_words_begin_with_fewer_and_purposes_differ() -> None:
    assert derive(5, words=20, purpose=b"a")[:3].tolist() == derive(5, words=3, purpose=b"a").tolist()
    assert derive(5, words=2, purpose=b"a").tolist() != derive(5, words=2, purpose=b"b").tolist()


MEASURE = """
import resource
from resumable.samplers import Shuffle
Shuffle(10_000).indices(0, 0, 4096)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
shuffle = Shuffle(10**9, seed=1)
for epoch in range(3):
    for start in range(0, 10**9, 10**7):
        shuffle.indices(epoch, start, start + 4096)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(  # noqa: TID251  # only elsewhere than on Linux
    sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux only"
)
def test_billion_samples_in_20_megabytes() -> None:
    """An order of a billion samples takes less than 20 megabytes."""
    grown = subprocess.run([sys.executable, "-c", MEASURE], check=True, capture_output=True, text=True).stdout
    assert int(grown) < 20_000
