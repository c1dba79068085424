"""Is the order as good as a true shuffle? Statistics with a control, and with weak orders that they must reject.

Everything is seeded, so that each score is the same in every run.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from order_statistics import (
    Draw,
    Orders,
    Scores,
    agreements,
    all_orders,
    compositions,
    congruential,
    control,
    differences,
    fixed_points,
    inversions,
    ours,
    places,
    rounds,
    serial_correlation,
)

from resumable.samplers import Permutation, Shuffle

if TYPE_CHECKING:
    from collections.abc import Callable

ACCEPTED = 4.0  # a score beyond it has a chance of 1 in 16,000; some fifty are computed
REJECTED = 8.0

ORDERS: dict[str, Draw] = {
    "ours": ours,
    "control": control,
    "line": congruential,
    "2 rounds": rounds(2),
    "3 rounds": rounds(3),
    "4 rounds": rounds(4),
    "8 rounds": rounds(8),  # without the table
}


class Case(NamedTuple):
    statistic: Callable[[Orders], Scores]
    length: int
    orders: int
    weak: tuple[str, ...]  # orders that the statistic must reject


CASES = [
    Case(places, 10_000, 400, ("2 rounds",)),
    Case(differences, 4097, 400, ("2 rounds", "line")),
    Case(differences, 100, 2000, ("3 rounds", "line")),
    Case(fixed_points, 4097, 2000, ("2 rounds", "3 rounds")),
    Case(fixed_points, 100, 4000, ("3 rounds", "line")),
    Case(inversions, 4097, 400, ("2 rounds", "line")),
    Case(inversions, 100, 4000, ("4 rounds", "line")),
    Case(serial_correlation, 4097, 400, ("4 rounds", "line")),
    Case(serial_correlation, 10_000, 400, ("4 rounds", "line")),
    Case(compositions, 10_000, 400, ("2 rounds", "line")),
    Case(agreements, 4097, 2000, ("2 rounds",)),
    Case(agreements, 100, 4000, ("2 rounds", "line")),
    Case(all_orders, 5, 12_000, ("8 rounds", "line")),
]
REJECTIONS = [(case, weak) for case in CASES for weak in case.weak]


@lru_cache(maxsize=3)
def drawn(name: str, length: int, count: int) -> Orders:
    return ORDERS[name](length, count, 20_000)


def name_of(value: object) -> str:
    return f"{value.statistic.__name__}-{value.length}" if isinstance(value, Case) else str(value)


def worst(scores: Scores) -> float:
    return max(map(abs, scores.values()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ours", "control"])
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_order_is_as_random_as_the_control(case: Case, name: str) -> None:
    scores = case.statistic(drawn(name, case.length, case.orders))
    assert worst(scores) < ACCEPTED, scores


@pytest.mark.slow
@pytest.mark.parametrize(("case", "weak"), REJECTIONS, ids=name_of)
def test_the_statistic_rejects_a_weak_order(case: Case, weak: str) -> None:
    scores = case.statistic(drawn(weak, case.length, case.orders))
    assert worst(scores) > REJECTED, scores


@pytest.mark.slow
def test_consecutive_epochs_are_independent() -> None:
    """The orders of consecutive epochs differ as much as those of independent shuffles."""
    shuffle = Shuffle(4097, seed=7)
    orders = np.stack([shuffle.indices(epoch, 0, 4097) for epoch in range(2000)])
    assert worst(agreements(orders)) < ACCEPTED


@pytest.mark.slow
@pytest.mark.parametrize("length", [65_536, 1_000_003, 10**9, 10**12])
def test_long_orders_have_no_serial_correlation(length: int) -> None:
    taken = np.stack([Permutation(length, seed, 0).range(0, 1 << 16) for seed in range(40)])
    assert worst(serial_correlation(taken, length)) < ACCEPTED
    spread = np.stack([np.random.default_rng(seed).integers(length, size=1 << 16) for seed in range(40)])
    assert worst(serial_correlation(spread, length)) < ACCEPTED
    line = taken[:, :1] + np.arange(1 << 16) * (length // 77) + np.arange(40)[:, None]
    assert worst(serial_correlation(line % length, length)) > REJECTED


def test_short_statistics_reject_four_rounds() -> None:
    """Short statistics accept the order and reject one of four rounds."""
    assert worst(serial_correlation(ours(4097, 100, 0))) < ACCEPTED
    assert worst(serial_correlation(control(4097, 100, 0))) < ACCEPTED
    assert worst(serial_correlation(rounds(4)(4097, 100, 0))) > REJECTED
