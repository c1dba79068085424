"""A sample of a grid of options in which they meet as they do in the whole grid."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["covering", "meetings"]


def meetings(case: Sequence[Any], strength: int) -> set[tuple[tuple[int, Any], ...]]:
    """Return which values of any `strength` options meet in a case."""
    return set(combinations(enumerate(case), strength))


def covering(grid: Sequence[tuple[Any, ...]], strength: int) -> list[tuple[Any, ...]]:
    """Choose cases in which any values of `strength` options meet that meet in the grid: each time the best one."""
    chosen = []
    missing = set().union(*(meetings(case, strength) for case in grid))
    while missing:
        best = max(grid, key=lambda case: len(meetings(case, strength) & missing))
        chosen.append(best)
        missing -= meetings(best, strength)
    return chosen
