"""What two baseline runs have in common: only that can be expected of a run that was broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable.chaos.verify.history import steps_of
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from resumable.chaos.recorder.logs import Attempt

__all__ = ["drop_what_differs"]


def drop_what_differs(baseline: Attempt, again: Attempt) -> list[str]:
    """Compare two baseline runs, and forget what is not the same in both: the checks then expect it of no run.

    Returns:
        What differs, in words: parts of the checkpoints, and the final weights.

    Raises:
        ConfigurationError: they trained on other data.
    """
    first, second = steps_of(baseline), steps_of(again)
    if first != second:
        keys = sorted(first.keys() | second.keys())
        place = next(key[1] for key in keys if first.get(key) != second.get(key))
        raise ConfigurationError(
            f"two runs without any fault trained on different data, first before {place}.\nA crash cannot be told from "
            "that. Give every loader and every source of randomness a seed."
        )
    notes: list[str] = []
    for rank, log in baseline.ranks.items():
        other = again.ranks[rank]
        for step, parts in log.digests.items():
            for name in [name for name, digest in parts.items() if other.digests.get(step, {}).get(name) != digest]:
                del parts[name]
                notes.append(f"'{name}' in the checkpoints is not the same in two baseline runs, and is not compared")
        if log.weights != other.weights:
            log.weights = None
            notes.append("the final weights are not the same in two baseline runs, and are not compared")
    return sorted(set(notes))
