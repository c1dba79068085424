"""How many of the first `n` samples come from each source: a closed form in integers."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from resumable._randomness.keyed import IntArray, derive

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Counts"]

_Number = TypeVar("_Number", int, IntArray)

_BITS = 31  # so that a product of two weights is below 2**62


class Counts:
    """Deals `n` samples to sources in proportion to weights, for any `n`.

    The sources are the leaves of a binary tree. A node with the weights `a` and `b - a` below it deals
    `(n * a + phase) // b` of its `n` samples to the left, and the rest to the right. So the counts add up to `n`, never
    fall where `n` grows, and are at most one per level of the tree away from their share.

    Args:
        shares: weight of each source, at least one above 0.
        key: selects the phases of the nodes.
    """

    def __init__(self, shares: Sequence[float], *key: int | str) -> None:
        self.sources = len(shares)
        weights = _integers(shares)
        phases = iter(derive(*key, words=self.sources, purpose=b"mixture-tree").tolist())
        self._root = self._build([k for k in range(self.sources) if weights[k]], weights, phases)

    def _build(self, members: list[int], weights: list[int], phases: Iterator[int]) -> _Node | int:
        """Cut the sources where the sums of both parts are nearest to each other."""
        if len(members) == 1:
            return members[0]
        sums = list(accumulate(weights[k] for k in members))
        total = sums[-1]
        cut = min(range(len(members) - 1), key=lambda k: abs(2 * sums[k] - total))
        phase = next(phases) % total
        left = self._build(members[: cut + 1], weights, phases)
        return _Node(sums[cut], total, phase, left, self._build(members[cut + 1 :], weights, phases))

    def at(self, numbers: IntArray) -> IntArray:
        """Return the counts for each `n` of an array, shape `(len(numbers), sources)`."""
        counts = np.zeros((len(numbers), self.sources), np.int64)
        todo: list[tuple[_Node | int, IntArray]] = [(self._root, numbers)]
        while todo:
            below, n = todo.pop()
            if isinstance(below, int):
                counts[:, below] = n
            else:
                left = below.deal(n)
                todo += [(below.left, left), (below.right, n - left)]
        return counts

    def after(self, number: int) -> list[int]:
        """Return the counts for one `n`."""
        counts, todo = [0] * self.sources, [(self._root, number)]
        while todo:
            below, n = todo.pop()
            if isinstance(below, int):
                counts[below] = n
            else:
                left = below.deal(n)
                todo += [(below.left, left), (below.right, n - left)]
        return counts


class _Node:
    __slots__ = ("_part", "_phase", "_whole", "left", "right")

    def __init__(self, part: int, whole: int, phase: int, left: _Node | int, right: _Node | int) -> None:
        self._part, self._whole, self._phase = part, whole, phase
        self.left, self.right = left, right

    def deal(self, n: _Number) -> _Number:
        """Return `(n * part + phase) // whole`, where `n * part` may be too large for 64 bits."""
        rounds, rest = n // self._whole, n % self._whole
        return rounds * self._part + (rest * self._part + self._phase) // self._whole


def _integers(shares: Sequence[float]) -> list[int]:
    """Return integers in the proportions of the shares that sum up to 2**31; what is above 0 stays above 0."""
    exact = [Fraction(share) for share in shares]
    unit = Fraction(1 << _BITS) / sum(exact)
    found = [max(int(share * unit), 1) if share else 0 for share in exact]
    largest = max(range(len(found)), key=found.__getitem__)
    rest = (1 << _BITS) - sum(found)
    missing = sorted((k for k, share in enumerate(exact) if share), key=lambda k: found[k] - exact[k] * unit)
    for k in missing[: max(rest, 0)]:
        found[k] += 1
    found[largest] += min(rest, 0)
    return found
