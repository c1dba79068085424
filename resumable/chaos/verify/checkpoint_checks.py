"""The checks of checkpoints and states: what is in them, whether they load, and where a run goes on from them."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from resumable._content import split
from resumable.chaos.plan import FAULTS
from resumable.chaos.verify.history import first_elsewhere
from resumable.chaos.verify.inplace import find_in_place, find_survived
from resumable.chaos.verify.parts import differences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable.chaos.plan import Case
    from resumable.chaos.recorder.attempts import Attempt

__all__ = ["atomic_saves", "checkpoints_load", "from_the_newest", "same_checkpoints", "same_place", "true_states"]


def true_states(_: Case, __: Attempt, attempts: Sequence[Attempt]) -> str:
    """A state names the place at which it was taken, and brings the loader to the place that it names."""
    for attempt in attempts:
        for log in attempt.ranks.values():
            if log.untrue:
                return f"in start {attempt.number}, {log.untrue[0]}"
    return ""


def same_place(_: Case, __: Attempt, attempts: Sequence[Attempt]) -> str:
    """A loader goes on at a place that is in the checkpoint which the weights come from."""
    if (found := first_elsewhere(attempts)) is None:
        return ""
    places = ", ".join(map(str, sorted(found.expected)))
    went = f"loader {found.loader} of start {found.start} went to {found.place}"
    return f"{went}, but the checkpoint which was loaded is of {places}"


def checkpoints_load(_: Case, __: Attempt, attempts: Sequence[Attempt]) -> str:
    """After every start, every committed checkpoint can be loaded; where one was damaged on purpose, an older one."""
    for attempt in attempts:
        if attempt.unloadable:
            return f"after start {attempt.number}, {attempt.unloadable[0]}"
    return ""


def from_the_newest(case: Case, _: Attempt, attempts: Sequence[Attempt]) -> str:
    """A start resumes from the newest checkpoint of a store that was committed before it, and not damaged."""
    newest: dict[str, int] = {}
    for attempt in attempts:
        leg = case.legs[attempt.leg - 1] if 0 < attempt.leg <= len(case.legs) and not attempt.restarts else None
        if leg is not None and leg.fault is not None and FAULTS[leg.fault.kind].storage is not None:
            newest = {}  # for this start, and for those after it if it ends before it has saved anything
        for log in attempt.ranks.values():
            for root, step in log.restored:
                if root in newest and (step is None or step < newest[root]):
                    return f"start {attempt.number} resumed from step {step}, but step {newest[root]} had been saved"
        for log in attempt.ranks.values():
            for root, step in log.saved:
                newest[root] = max(newest.get(root, -1), step)
    return ""


def atomic_saves(_: Case, baseline: Attempt, attempts: Sequence[Attempt]) -> str:
    """A checkpoint is written beside the one that it replaces, so that a kill within a save loses neither."""
    survived = find_survived(attempts)
    names = [name for name, over in find_in_place(baseline, attempts).items() if over and name not in survived]
    return f"{', '.join(sorted(names))} is written in place, and read by the start after" if names else ""


def same_checkpoints(_: Case, baseline: Attempt, attempts: Sequence[Attempt]) -> str:
    """A checkpoint of a step holds what it holds in the baseline run: weights, optimizer, generators."""
    for found in differences(baseline, attempts):
        names = sorted({split(path)[0] for path in found.differing})
        of = f" ({found.save[0]})" if PurePath(found.save[0]).suffix else ""  # a file's name, and no store's
        return f"'{names[0]}' in the checkpoint of step {found.step} of start {found.start} differs{of}"
    return ""
