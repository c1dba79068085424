"""When to kill: times chosen from the progress of the process, plus a random delay."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from .attempt import Attempt

__all__ = ["Kill", "plan_kills"]

_MARGIN = 16  # batches at the end of the run without a kill, so no kill comes too late
_DELAY = 0.015  # seconds: three steps and their checkpoint


class Kill(NamedTuple):
    """A planned kill.

    Args:
        after: minimum number of batches in the weights.
        epoch_end: wait for the next evaluation.
        delay: seconds from there.
    """

    after: int
    epoch_end: bool
    delay: float

    def is_due(self, event: dict[str, Any]) -> bool:
        """Return whether an event of the ledger is the one that the kill waits for."""
        if event["kind"] == "batch":
            return bool(event["count"] >= self.after + self.epoch_end)
        return bool(event["kind"] == "epoch-end" and event["count"] >= self.after)


def plan_kills(baseline: Attempt, number: int, seed: str) -> list[Kill]:
    """Choose times after the first checkpoint; with two or more kills, one of them hits an evaluation.

    Args:
        baseline: the run without kills, which determines the number of batches.
        number: number of kills.
        seed: chooses the times.

    Raises:
        ConfigurationError: the run is too short for so many kills.
    """
    generator, first, last = random.Random(seed), min(baseline.saves), baseline.last - _MARGIN
    ends = [count for count in baseline.epoch_ends if count <= last]
    if number > last - first:
        raise ConfigurationError(
            f"a run of {baseline.last} batches has room for {max(last - first, 0)} kills, but {number} were requested."
        )
    kills = [Kill(generator.choice(ends), epoch_end=True, delay=0.0)] if number > 1 and ends else []
    parts = number - len(kills)
    borders = [first + (last - first) * part // parts for part in range(parts + 1)]
    kills += [
        Kill(generator.randint(low + 1, high), epoch_end=False, delay=generator.uniform(0.0, _DELAY))
        for low, high in pairwise(borders)
    ]
    return sorted(kills)
