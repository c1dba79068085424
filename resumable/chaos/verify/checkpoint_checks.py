"""The checks of checkpoints and states: what is in them, whether they load, and where a run goes on from them."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from resumable.chaos.plan import FAULTS
from resumable.chaos.verify.history import is_resized

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable.chaos.plan import Case
    from resumable.chaos.recorder.logs import Attempt, Place

__all__ = ["checkpoints_load", "from_the_newest", "same_checkpoints", "same_place", "true_states"]


def true_states(_: Case, __: Attempt, attempts: Sequence[Attempt]) -> str:
    """A state names the place at which it was taken, and brings the loader to the place that it names."""
    for attempt in attempts:
        for log in attempt.ranks.values():
            if log.untrue:
                return f"in start {attempt.number}, {log.untrue[0]}"
    return ""


def same_place(_: Case, __: Attempt, attempts: Sequence[Attempt]) -> str:
    """A loader goes on at a place that is in the checkpoint which the weights come from."""
    saved: dict[tuple[str, int | None], set[Place]] = {}
    for attempt in attempts:
        for log in attempt.ranks.values():
            for key, places in log.saved_places.items():
                saved.setdefault(key, set()).update(places)
        for log in attempt.ranks.values():
            known = [found for key in log.restored if (found := saved.get(key))]
            for loader, place in log.loaded.items():
                if known and not any(place in found for found in known):
                    return (
                        f"loader {loader} of start {attempt.number} went to {place}, but the checkpoint which was "
                        f"loaded is of {', '.join(map(str, sorted(known[-1])))}"
                    )
    return ""


def checkpoints_load(_: Case, __: Attempt, attempts: Sequence[Attempt]) -> str:
    """After every start, every committed checkpoint can be loaded; where one was damaged on purpose, an older one."""
    for attempt in attempts:
        if attempt.unloadable:
            return f"after start {attempt.number}, {attempt.unloadable[0]}"
    return ""


def from_the_newest(case: Case, _: Attempt, attempts: Sequence[Attempt]) -> str:
    """A start resumes from the newest checkpoint that was committed before it, unless that was damaged on purpose."""
    newest = -1
    for attempt in attempts:
        leg = case.legs[attempt.number - 1] if 0 < attempt.number <= len(case.legs) else None
        if leg is not None and leg.fault is not None and FAULTS[leg.fault.kind].storage is not None:
            newest = -1  # for this start, and for those after it if it ends before it has saved anything
        for log in attempt.ranks.values():
            for _root, step in log.restored:
                if newest >= 0 and (step is None or step < newest):
                    return f"start {attempt.number} resumed from step {step}, but step {newest} had been saved"
        steps = [step for log in attempt.ranks.values() for _root, step in log.saved]
        newest = max([newest, *steps])
    return ""


def same_checkpoints(_: Case, baseline: Attempt, attempts: Sequence[Attempt]) -> str:
    """A checkpoint of a step holds what it holds in the baseline run: weights, optimizer, generators."""
    expected: dict[tuple[int, str], set[str]] = {}
    for log in baseline.ranks.values():
        for step, parts in log.digests.items():
            for name, digests in parts.items():
                expected.setdefault((step, name), set()).update(digests)
    for attempt in takewhile(lambda attempt: not is_resized(attempt, baseline), attempts):
        for log in attempt.ranks.values():
            for step, parts in log.digests.items():
                for name, digests in parts.items():
                    if not set(digests) <= expected.get((step, name), set(digests)):
                        return f"'{name}' in the checkpoint of step {step} of start {attempt.number} differs"
    return ""
