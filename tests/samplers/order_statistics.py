"""Statistics of orders, each as z-scores that are about normal for orders drawn uniformly from all permutations.

Orders come as arrays of shape `(orders, length)`, one row for each seed. The expectations and variances are exact, or
those of a limit; a control (NumPy's permutations) shows that they are right, and weak orders show that a test can fail.

Sources: the number of fixed points tends to Poisson(1), whose fourth central moment is 4. Moments of inversions: Knuth,
"The Art of Computer Programming", volume 3, section 5.1.1. Serial correlation of a permutation: Wald and Wolfowitz, "An
exact test for randomness in the non-parametric case based on serial correlation" (1943).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from math import gcd, sqrt
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from resumable.samplers import Permutation, permutation

Orders = NDArray[np.int64]
Draw = Callable[[int, int, int], Orders]
Scores = dict[str, float]


# ---------------------------------------------------------------------- orders: (length, count, first seed) -> orders


def ours(length: int, count: int, seed: int) -> Orders:
    return np.stack([Permutation(length, seed + i, 0).range(0, length) for i in range(count)])


def control(length: int, count: int, seed: int) -> Orders:
    return np.stack([np.random.default_rng([seed + i, length]).permutation(length) for i in range(count)])


def congruential(length: int, count: int, seed: int) -> Orders:
    """Weak: `(a * i + c) mod n`, with `a` and `c` drawn at random."""
    return np.stack([_line(length, np.random.default_rng([seed + i, length])) for i in range(count)])


def _line(length: int, random: np.random.Generator) -> Orders:
    factors = (int(random.integers(1, length)) for _ in range(1000))
    factor = next(factor for factor in factors if gcd(factor, length) == 1)
    line: Orders = (np.arange(length) * factor + random.integers(length)) % length
    return line


def rounds(number: int) -> Draw:
    """Weak: the network with this number of rounds, and without the table for short orders."""

    def draw(length: int, count: int, seed: int) -> Orders:
        with mock.patch.object(permutation, "_ROUNDS", number), mock.patch.object(permutation, "_TABLE_LENGTH", 0):
            return ours(length, count, seed)

    return draw


# ---------------------------------------------------------------------- statistics: orders -> z-scores


def places(orders: Orders, blocks: int = 16) -> Scores:
    """Does every block of positions get its share of every block of indices? Chi-square over the table of both.

    The count of a cell is hypergeometric, and the counts of a row and of a column have a fixed sum, which leaves
    `(blocks - 1)**2` degrees of freedom.
    """
    count, length = orders.shape
    block = length // blocks
    owner = np.minimum(orders[:, : block * blocks] // block, blocks).reshape(count, blocks, block)
    table = np.stack([np.bincount(owner[:, i].ravel(), minlength=blocks + 1)[:blocks] for i in range(blocks)])
    chi2 = ((table - count * block**2 / length) ** 2).sum() / (count * block**2 / (length - 1))
    return {"chi2": _chi2_score(chi2, (blocks - 1) ** 2)}


def differences(orders: Orders, classes: int = 32) -> Scores:
    """Are neighbours as far apart as they should? Of disjoint pairs, in classes that are about equally likely."""
    count, length = orders.shape
    pairs = orders[:, : length // 2 * 2].reshape(count, -1, 2)
    observed = (pairs[:, :, 1] - pairs[:, :, 0]).ravel()
    values = np.arange(1 - length, length)
    chances = np.where(values == 0, 0, (length - np.abs(values)) / (length * (length - 1)))
    borders = np.searchsorted(np.cumsum(chances), np.linspace(0, 1, classes + 1)[1:-1])
    owner = np.searchsorted(borders, np.arange(len(values)))
    expected = len(observed) * np.bincount(owner, weights=chances, minlength=classes)
    found = np.bincount(owner[observed + length - 1], minlength=classes)
    return {"chi2": _chi2_score(((found - expected) ** 2 / expected).sum(), classes - 1)}


def fixed_points(orders: Orders) -> Scores:
    """Are as many samples at the position of their own number as they should?"""
    return _poisson((orders == np.arange(orders.shape[1])).sum(axis=1))


def agreements(orders: Orders) -> Scores:
    """Do the orders of consecutive seeds agree at as many positions as independent orders do?"""
    return _poisson((orders[1:] == orders[:-1]).sum(axis=1))


def inversions(orders: Orders, kept: int = 256) -> Scores:
    """Are as many pairs out of order as there should? Of evenly spread positions, as it takes time by their square."""
    kept = min(kept, orders.shape[1])
    rows = orders[:, :: orders.shape[1] // kept][:, :kept]
    found = np.array([np.triu(row[:, None] > row[None, :], 1).sum() for row in rows])
    mean, variance = kept * (kept - 1) / 4, kept * (kept - 1) * (2 * kept + 5) / 72
    return _normal((found - mean) / sqrt(variance))


def serial_correlation(orders: Orders, length: int = 0) -> Scores:
    """Are the indices of positions at a distance uncorrelated? The mean correlation is `-1 / (length - 1)`.

    With a `length`, the rows are beginnings of orders of that length.
    """
    taken = orders.shape[1]
    length = length or taken
    centred = orders - (length - 1) / 2
    scores: Scores = {}
    for lag in (1, 16, 64, 256):
        correlation = (centred[:, :-lag] * centred[:, lag:]).mean(axis=1) / ((length * length - 1) / 12)
        found = _normal((correlation + 1 / (length - 1)) * sqrt(taken - lag))
        scores |= {f"lag {lag} {name}": score for name, score in found.items()}
    return scores


def compositions(orders: Orders, batch: int = 256, classes: int = 10) -> Scores:
    """Has a batch its share of every class? Of data that is sorted by class, and of data where classes take turns."""
    length = orders.shape[1]
    scores: Scores = {}
    for name, owner in {"sorted": np.arange(length) * classes // length, "turns": np.arange(length) % classes}.items():
        shares = batch * np.bincount(owner) / length
        drawn = np.concatenate([owner[orders[:, start : start + batch]] for start in (0, 7 * batch, 15 * batch)])
        found = np.stack([(drawn == number).sum(axis=1) for number in range(classes)], axis=1)
        chi2 = ((found - shares) ** 2 / shares).sum(axis=1) * (length - 1) / (length - batch)
        scores[name] = _chi2_score(float(chi2.sum()), (classes - 1) * len(chi2))
    return scores


def all_orders(orders: Orders) -> Scores:
    """Is each of all `length!` orders as frequent as any other?"""
    length = orders.shape[1]
    weights = length ** np.arange(length)
    codes = np.sort(np.array(list(permutations(range(length)))) @ weights)
    found = np.bincount(np.searchsorted(codes, orders @ weights), minlength=len(codes))
    expected = len(orders) / len(codes)
    return {"chi2": _chi2_score(((found - expected) ** 2 / expected).sum(), len(codes) - 1)}


def _chi2_score(chi2: float, freedom: int) -> float:
    return float(chi2 - freedom) / sqrt(2 * freedom)


def _poisson(found: NDArray[np.int64]) -> Scores:
    """Score the mean and the variance of counts that should be Poisson(1)."""
    count = len(found)
    variance = ((found - 1) ** 2).mean()
    return {"mean": float(found.sum() - count) / sqrt(count), "variance": float(variance - 1) / sqrt(3 / count)}


def _normal(found: NDArray[np.float64]) -> Scores:
    """Score the mean and the variance of numbers that should be standard normal."""
    count = len(found)
    return {"mean": float(found.sum()) / sqrt(count), "variance": float((found**2).mean() - 1) / sqrt(2 / count)}
