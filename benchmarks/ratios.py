"""Takes measurements alternately, and summarizes their ratios."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Ratio", "in_turns", "median", "ratio"]

Name = TypeVar("Name")
Value = TypeVar("Value")


class Ratio(NamedTuple):
    """Median, smallest and largest of the ratios of paired measurements."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        digits = 2 if self.middle < 10 else 0
        return f"{self.middle:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"

    def at_least(self, target: float) -> str:
        """Return whether a target was reached, or whether it is within the spread."""
        if self.middle >= target:
            return "yes"
        return "within the spread" if self.high >= target else "**no**"


def in_turns(rounds: int, measures: Mapping[Name, Callable[[], Value]]) -> dict[Name, list[Value]]:
    """Measure A B C A B C ...; return the values of each, in the order of the rounds."""
    taken: dict[Name, list[Value]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            taken[name].append(measure())
    return taken


def ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Compare measurements of the same rounds, pair by pair."""
    quotients = [a / b for a, b in zip(above, below, strict=True)]
    return Ratio(statistics.median(quotients), min(quotients), max(quotients))


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)
