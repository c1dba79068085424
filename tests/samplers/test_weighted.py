"""Weighted: draws in proportion to any weights, exactly reproducible."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from resumable._randomness.keyed import scale
from resumable.errors import ConfigurationError
from resumable.samplers import Weighted, simple
from resumable.samplers.simple import _integer_sums

deterministic = settings(derandomize=True, deadline=None, max_examples=100)
usable = st.lists(st.floats(0, 1e308), min_size=1, max_size=50).filter(any)


def chi2_score(weights: Any, draws: Any) -> float:
    weights = np.asarray(weights, dtype=np.float64)
    expected = weights / weights.sum() * len(draws)
    found, likely = np.bincount(draws, minlength=len(weights)), expected > 0
    chi2 = ((found - expected)[likely] ** 2 / expected[likely]).sum()
    freedom = likely.sum() - 1
    return float((chi2 - freedom) / sqrt(2 * freedom))


@pytest.mark.parametrize("weights", [[1, 2, 3, 4], [5, 0, 5], [1] * 100, np.linspace(0, 1, 200), [1e-3, 1, 1e3]])
def test_draws_are_in_proportion(weights: Any) -> None:
    draws = Weighted(weights, seed=1, num_samples=200_000).indices(0, 0, 200_000)
    assert abs(chi2_score(weights, draws)) < 4


def test_the_proportions_can_be_told_from_others() -> None:
    draws = Weighted([1, 2, 3, 4], seed=1, num_samples=200_000).indices(0, 0, 200_000)
    assert chi2_score([1, 2, 3, 4.1], draws) > 8


@pytest.mark.slow
def test_draws_of_many_weights_are_in_proportion() -> None:
    weights = np.random.default_rng(0).random(100_000)
    draws = Weighted(weights, num_samples=4_000_000).indices(3, 0, 4_000_000)
    assert abs(chi2_score(weights, draws)) < 4


def test_neighbouring_draws_are_independent() -> None:
    """Draws of neighbouring positions and epochs are independent."""
    sampler = Weighted([1] * 16, num_samples=100_000)
    one, other = sampler.indices(0, 0, 100_000), sampler.indices(1, 0, 100_000)
    for pairs in (one[:-1] * 16 + one[1:], one * 16 + other):
        assert abs(chi2_score([1] * 256, pairs)) < 4


@deterministic
@given(usable)
@example([0.0, 1.0, 0.0])
@example([5e-324, 0.0])
@example([0.0, 0.0, 1e308])
def test_a_weight_of_zero_is_never_drawn(weights: list[float]) -> None:
    draws = Weighted(weights, num_samples=2000).indices(0, 0, 2000)
    assert {weights[index] == 0 for index in draws.tolist()} == {False}


def test_zeros_at_the_borders_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros at the borders are not drawn at the extreme random numbers."""
    sampler = Weighted([0, 0, 4, 0, 2, 0, 0])
    first_of_last = -(-(2**64) * 2 // 3)
    words = np.array([0, first_of_last - 1, first_of_last, 2**64 - 1], dtype=np.uint64)
    monkeypatch.setattr(simple, "random_u64", lambda key, counters: words)
    assert sampler.indices(0, 0, 4).tolist() == [2, 2, 4, 4]


def test_a_large_range_of_weights() -> None:
    draws = Weighted([1e-300, 1, 1e300, 1e300], num_samples=10_000).indices(0, 0, 10_000)
    assert set(draws.tolist()) == {2, 3}
    assert abs(chi2_score([0, 0, 1, 1], draws)) < 4
    assert set(Weighted([5e-324, 0]).indices(0, 0, 2).tolist()) == {0}
    assert abs(chi2_score([1, 1], Weighted([1.7e308] * 2, num_samples=9999).indices(0, 0, 9999))) < 4


def test_weights_are_rounded_to_the_unit_that_is_documented() -> None:
    assert _integer_sums(np.array([1, 2**-40])).tolist() == [2**40, 2**40 + 1]
    assert _integer_sums(np.array([1, 0.99 * 2**-41])).tolist() == [2**40, 2**40]
    assert _integer_sums(np.array([1, 1.01 * 2**-41])).tolist() == [2**40, 2**40 + 1]


@deterministic
@given(usable, st.integers(-300, 300))
def test_only_the_proportions_count(weights: list[float], power: int) -> None:
    with np.errstate(all="ignore"):  # what overflows or loses digits is left out
        scaled = np.ldexp(np.array(weights), power)
        exact = np.array_equal(np.ldexp(scaled, -power), weights)
    if exact:
        assert np.array_equal(_integer_sums(scaled), _integer_sums(np.array(weights)))


@pytest.mark.parametrize("count", [2**23 - 1, 2**23, pytest.param(2**24 + 7, marks=pytest.mark.slow)])
def test_the_sum_of_many_weights_does_not_overflow(count: int) -> None:
    sums = _integer_sums(np.ones(count))
    unit = int(sums[0])
    assert int(sums[-1]) == unit * count < 2**63
    assert unit == min(2**40, 2 ** (63 - count.bit_length()))


@deterministic
@given(st.lists(st.integers(0, 2**64 - 1), min_size=1), st.integers(1, 2**63 - 1))
@example([2**64 - 1], 2**63 - 1)
def test_scaling_is_an_exact_product(words: list[int], total: int) -> None:
    scaled = scale(np.array(words, dtype=np.uint64), total)
    assert scaled.tolist() == [word * total >> 64 for word in words]


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ([], "shape (0,)"),
        ([[1, 2]], "shape (1, 2), minimum 1.0 and maximum 2.0"),
        (3, "shape (), minimum 3.0"),
        ([0, 0], "minimum 0.0 and maximum 0.0"),
        ([1, -2], "minimum -2.0 and maximum 1.0"),
        ([1, float("nan")], "minimum nan"),
        ([1, float("inf")], "maximum inf"),
        (["a"], "could not convert string to float: 'a'"),
        ([object()], "object"),
        ([[1], [1, 2]], "inhomogeneous"),
    ],
)
def test_bad_weights_are_refused(weights: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match="weights must be") as caught:
        Weighted(weights)
    assert told in str(caught.value)


def test_the_spec_depends_on_the_weights() -> None:
    specs = {str(Weighted(weights, num_samples=9).spec()) for weights in ([1, 2], [2, 4], [2, 1], [1, 2, 0], [1, 1])}
    assert len(specs) == 4, "[1, 2] and [2, 4] draw the same"
