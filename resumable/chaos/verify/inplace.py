"""Checkpoints that a kill within their save destroys: written under the name by which the next start reads them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING

from resumable.checkpoint.steps import DIRECTORY, TOKEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable.chaos.recorder.attempts import Attempt

__all__ = ["find_in_place", "find_survived"]

# Of files that another function than `torch.save` wrote, those that may hold a state: no logs and no tables.
_STATES = {
    *(".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".npy", ".npz", ".json", ".pkl", ".pickle", ".joblib"),
    *(".msgpack", ".state"),
}


def find_in_place(baseline: Attempt, attempts: Sequence[Attempt]) -> dict[str, bool]:
    """Find the checkpoints that were written in place by a start, and read by a later one before it wrote them.

    Returns:
        By their paths in the case, whether an older content is lost by that: else each save has a name of its own.
    """
    found: dict[str, bool] = {}
    written = {name for name, one in baseline.in_place.items() if one.over}
    earlier: set[str] = set()
    for attempt in attempts:
        for name, when in attempt.read_in_place.items():
            own = attempt.in_place.get(name)
            if name in earlier and (own is None or when < own.first) and _is_checkpoint(name, baseline, *attempts):
                found[name] = name in written
        earlier |= attempt.in_place.keys()
        written |= {name for name, one in attempt.in_place.items() if one.over}
    return found


def _is_checkpoint(name: str, *attempts: Attempt) -> bool:
    if DIRECTORY.fullmatch(PurePath(name).parent.name):  # of a CheckpointStore, which reads what is committed
        return False
    if PurePath(name).name == TOKEN:  # says who writes
        return False
    saved = any(name in log.saves for attempt in attempts for log in attempt.ranks.values())
    return saved or PurePath(name).suffix in _STATES


def find_survived(attempts: Sequence[Attempt]) -> set[str]:
    """Find the files of which a start left one half, and the next one went on from another checkpoint, to the end."""
    if attempts[-1].status != 0 or attempts[-1].killed:
        return set()
    return {
        log.half
        for one, after in pairwise(attempts)
        for log in one.ranks.values()
        if one.fired and log.half in after.read_in_place and any(other.loaded for other in after.ranks.values())
    }
