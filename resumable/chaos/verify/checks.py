"""The checks: each verifies one promise, and returns in words what broke it; an empty string if nothing did."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from resumable._content import split
from resumable.chaos.digests import SEPARATOR
from resumable.chaos.ledger import RankLog
from resumable.chaos.plan import FAULTS
from resumable.chaos.verify.files import few, find_in_place, find_survived, same_files
from resumable.chaos.verify.history import (
    differences,
    effective_history,
    first_elsewhere,
    is_resized,
    same_step,
    steps_of,
    without_a_place,
)
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from resumable.chaos.ledger import Attempt, Save, StepRef, Update
    from resumable.chaos.plan import Case
    from resumable.chaos.verify.history import Key, Step


__all__ = [
    "ATOMIC",
    "CHECKS",
    "apart",
    "check",
    "check_restarts",
    "find_remaining",
    "from_the_newest",
    "ranks_agree",
    "same_checkpoints",
    "same_place",
    "same_shares",
    "same_steps",
    "true_states",
]


ATOMIC = "atomic saves"


def check(case: Case, baseline: Attempt, attempts: Sequence[Attempt]) -> dict[str, str]:
    """Run all checks.

    Returns:
        A dict from the name of a check to the reason why it failed; empty if every promise was kept.
    """
    found = {name: one(case, baseline, attempts) for name, one in CHECKS.items()}
    return {name: text for name, text in found.items() if text}


# Checkpoints and states: their content, whether they load, and where a run resumes.


def true_states(_: Case, __: Attempt, attempts: Sequence[Attempt]) -> str:
    """A state contains the position at which it was saved, and restores the loader to that position."""
    for attempt in attempts:
        for log in attempt.ranks.values():
            if log.untrue:
                return f"in launch {attempt.number}, {log.untrue[0]}"
    return ""


def same_place(_: Case, __: Attempt, attempts: Sequence[Attempt]) -> str:
    """A loader resumes at a position from the same checkpoint as the weights."""
    if (found := first_elsewhere(attempts)) is None:
        return ""
    places = ", ".join(map(str, sorted(found.expected)))
    went = f"loader {found.loader} of launch {found.start} resumed at {found.place}"
    return f"{went}, but the loaded checkpoint is from {places}"


def checkpoints_load(_: Case, __: Attempt, attempts: Sequence[Attempt]) -> str:
    """After every launch, every committed checkpoint loads; if one was damaged on purpose, an older one does."""
    for attempt in attempts:
        if attempt.unloadable:
            return f"after launch {attempt.number}, {attempt.unloadable[0]}"
    return ""


def from_the_newest(case: Case, _: Attempt, attempts: Sequence[Attempt]) -> str:
    """A launch resumes from the newest checkpoint of a store that was committed before it, unless it was damaged."""
    newest: dict[str, int] = {}
    for attempt in attempts:
        before = case.launches[attempt.launch - 1 : attempt.launch] if attempt.launch and not attempt.restarts else ()
        if any(launch.fault and FAULTS[launch.fault.kind].storage for launch in before):
            newest = {}  # also for the following launches, until one saves
        for log in attempt.ranks.values():
            for root, step in log.restored:
                if root in newest and (step is None or step < newest[root]):
                    return f"launch {attempt.number} resumed from step {step}, but step {newest[root]} had been saved"
        for log in attempt.ranks.values():
            for root, step in log.saved:
                newest[root] = max(newest.get(root, -1), step)
    return ""


def atomic_saves(_: Case, baseline: Attempt, attempts: Sequence[Attempt]) -> str:
    """A checkpoint does not overwrite the previous one in place, so a kill during a save loses neither."""
    survived = find_survived(attempts)
    names = [name for name, over in find_in_place(baseline, attempts).items() if over and name not in survived]
    return f"{', '.join(sorted(names))} is overwritten in place, and the next launch reads it" if names else ""


def same_checkpoints(_: Case, baseline: Attempt, attempts: Sequence[Attempt]) -> str:
    """A checkpoint has the same content as in the baseline run at the same step: weights, optimizer, RNGs."""
    for found in differences(baseline, attempts):
        names = sorted({split(path)[0] for path in found.differing})
        of = f" ({found.save[0]})" if PurePath(found.save[0]).suffix else ""  # a file name, not a store
        return f"'{names[0]}' in the checkpoint of step {found.step} of launch {found.start} differs{of}"
    return ""


# Agreement of the ranks: their positions after a resume, and the batches that they receive.


def ranks_agree(_: Case, __: Attempt, attempts: Sequence[Attempt]) -> str:
    """All ranks of a launch resume at the same position."""
    return next((f"in launch {attempt.number}, {text}" for attempt in attempts for text in apart(attempt)), "")


def apart(attempt: Attempt) -> Iterator[str]:
    """Yield the ranks of a launch that resumed at a different position than the first one, in words.

    A rank that was killed before it loaded a state or received a batch is not compared.
    """
    first, *others = [log for _, log in sorted(attempt.ranks.items())] or [RankLog(0, 1)]
    for other in others:
        for loader in sorted(first.begun.keys() & other.begun.keys()):
            for one, two in zip(_places(first, loader), _places(other, loader), strict=False):
                if one != two:
                    yield f"{_rank_name(other, two)}, but {_rank_name(first, one)}, of loader {loader}"


def _places(log: RankLog, loader: int) -> list[StepRef]:
    """Return the positions to which states moved a loader; its first position, if this rank loaded none."""
    return log.went.get(loader, []) if log.went else [log.begun[loader]]


def _rank_name(log: RankLog, place: StepRef) -> str:
    return f"rank {log.rank} {'resumed from' if log.went else 'started at'} {place}"


def same_shares(baseline: Attempt, attempts: Sequence[Attempt]) -> str:
    """Report a rank that received a different share of a step than in the baseline run, acknowledged or not."""
    for attempt in attempts:
        for rank, log in attempt.ranks.items() if not is_resized(attempt, baseline) else ():
            expected = baseline.ranks[rank].batches if rank in baseline.ranks else {}
            for (loader, place), batch in log.batches.items():
                if (loader, place) in expected and batch != expected[loader, place]:
                    return (
                        f"rank {rank} of launch {attempt.number} received a different batch in {_name((loader, place))}"
                    )
    return ""


def check_restarts(before: Sequence[Attempt]) -> None:
    """Reject a baseline run in which an agent restarted its ranks.

    Args:
        before: the launches of the ranks before the last one.

    Raises:
        ConfigurationError: it did.
    """
    if before:
        raise ConfigurationError(
            f"the ranks fail without faults: their agent restarted them {len(before)} times.\nThe effects of a crash "
            "could not be distinguished. Run the command directly, with --max-restarts=0, to see the error."
        )


# The command, its data and its weights.


def comes_to_its_end(_: Case, __: Attempt, attempts: Sequence[Attempt]) -> str:
    """The last launch, without a fault, succeeds."""
    last = attempts[-1]
    if last.status == 0 and not last.killed:
        return ""
    how = f"was killed: {last.killed}" if last.killed else f"failed with status {last.status}"
    return f"launch {last.number}, which had no fault, {how}:\n{last.output}"


def same_content(_: Case, baseline: Attempt, attempts: Sequence[Attempt]) -> str:
    """Every attempt at a step has the samples of the baseline run, with the same content."""
    expected = steps_of(baseline)
    for attempt in attempts:
        for key, step in steps_of(attempt).items():
            if key in expected and (difference := _differ(step, expected[key])):
                which = f"different data than the baseline run in {_name(key)}"
                return f"launch {attempt.number} trained on {which}: {difference}"
    return same_shares(baseline, attempts)


def whole_history(_: Case, baseline: Attempt, attempts: Sequence[Attempt]) -> str:
    """The weights contain every step of the baseline run once, and no other step."""
    expected, found = _histories(baseline, attempts)
    lost, added = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if lost:
        return f"{len(lost)} steps of the baseline run are not in the weights, the first in {_name(lost[0])}"
    if added:
        return f"{len(added)} steps in the weights are not in the baseline run, the first in {_name(added[0])}"
    return ""


def _histories(baseline: Attempt, attempts: Sequence[Attempt]) -> tuple[dict[Key, Step], dict[Key, Step]]:
    """Return the steps in the weights of the baseline run and of a case, for loaders that have a position."""
    free = without_a_place(baseline, attempts)
    expected, found = (
        {key: step for key, step in one.items() if key[0] not in free}
        for one in (steps_of(baseline), effective_history(attempts))
    )
    return expected, found


def each_sample_once(_: Case, baseline: Attempt, attempts: Sequence[Attempt]) -> str:
    """Within an epoch, no sample is trained on more often than in the baseline run, over all ranks."""
    allowed, counted = map(_count_samples, _histories(baseline, attempts))
    for (loader, epoch, index), count in sorted(counted.items()):
        if count > allowed.get((loader, epoch, index), 0):
            times = f"{count} times, but {allowed.get((loader, epoch, index), 0)} times in the baseline run"
            return f"sample {index} was trained on {times}, in epoch {epoch} of loader {loader}"
    return ""


def same_steps(_: Case, baseline: Attempt, attempts: Sequence[Attempt]) -> str:
    """After a checkpoint, the last launch steps its optimizers as often as the baseline run did after the same one.

    A loop that fetches ahead loses the step of a batch that its loader's state counts, although no batch is missing.
    """
    if (one := find_remaining(baseline, attempts)) is None or one.found == one.expected:
        return ""
    steps = f"the checkpoint of step {one.save[1]} was followed by {one.found} steps of the optimizers"
    return f"in launch {attempts[-1].number}, {steps}, but by {one.expected} in the baseline run"


class Remaining(NamedTuple):
    """How often the optimizers stepped after a checkpoint.

    Args:
        save: the checkpoint, from which the last launch resumed.
        found: number of steps of that launch.
        expected: number of steps in the baseline run.
        first: the first of these.
    """

    save: Save
    found: int
    expected: int
    first: Update


def find_remaining(baseline: Attempt, attempts: Sequence[Attempt]) -> Remaining | None:
    """Count the steps of the optimizers after the last resume.

    Returns:
        None if the last launch did not finish, or did not continue from a checkpoint with the weights of the baseline
        run, or if that is unknown.
    """
    last = attempts[-1]
    if last.status != 0 or last.killed or is_resized(last, baseline):
        return None
    for rank, log in last.ranks.items():
        healthy = baseline.ranks.get(rank, RankLog(rank, 1))
        for one in (one for one in log.updates if one.resumed):
            other = same_step(healthy, one)
            if other is not None and other.weights == one.weights:
                return Remaining(one.save, log.stepped - one.before, healthy.stepped - other.before, other)
        if not log.stepped and (known := _known_steps(log, healthy)):
            first = max(known, key=lambda one: one.before)
            return Remaining(first.save, 0, healthy.stepped - first.before, first)
    return None


def _known_steps(log: RankLog, healthy: RankLog) -> list[Update]:
    """Return the steps of the baseline run after the checkpoints that a launch read.

    Nothing if no step followed a save of one of them: the launch may have nothing left to do.
    """
    found: list[Update] = []
    for save in log.resumed:
        after = [one for one in healthy.updates if one.save == save and not one.resumed and not one.optimizer]
        if len(after) != len(healthy.parts.get(save, ())):
            return []
        found += after
    return found


def same_weights(_: Case, baseline: Attempt, attempts: Sequence[Attempt]) -> str:
    """The final weights equal the baseline run's, bit for bit; above two ranks, up to rounding."""
    if any(is_resized(attempt, baseline) for attempt in attempts):
        return ""
    expected = {log.weights for log in baseline.ranks.values()}
    shown = [{log.weights for log in attempt.ranks.values() if log.weights} for attempt in attempts]
    found = next((weights for weights in reversed(shown) if weights), set())
    if expected in ({None}, found):
        return ""
    shown = [{text.partition(SEPARATOR)[0] for text in texts if text} for texts in (found, expected)]
    return f"final weights {shown[0]}, but {shown[1]} in the baseline run"


def no_orphans(_: Case, __: Attempt, attempts: Sequence[Attempt]) -> str:
    """No process outlives the process that started it."""
    for attempt in attempts:
        if attempt.orphans:
            return f"the processes {attempt.orphans} were still running after the end of launch {attempt.number}"
    return ""


CHECKS: dict[str, Callable[[Case, Attempt, Sequence[Attempt]], str]] = {
    "comes to its end": comes_to_its_end,
    "same content": same_content,
    "whole history": whole_history,
    "each sample once": each_sample_once,
    "same steps": same_steps,
    "true states": true_states,
    "same place": same_place,
    "ranks agree": ranks_agree,
    "checkpoints load": checkpoints_load,
    "newest checkpoint": from_the_newest,
    ATOMIC: atomic_saves,
    "same checkpoints": same_checkpoints,
    "same weights": same_weights,
    "same files": same_files,
    "no orphans": no_orphans,
}


def _differ(found: Step, expected: Step) -> str:
    if found.indices is not None and expected.indices is not None and found.indices != expected.indices:
        wrong = [index for index in found.indices if index not in expected.indices]
        return f"samples {few(wrong or found.indices)} instead of {few(expected.indices)}"
    if found.digests != expected.digests:
        rows = [
            row for row, (one, other) in enumerate(zip(found.digests, expected.digests, strict=False)) if one != other
        ]
        names = [f"{row} (sample {found.indices[row]})" if found.indices else str(row) for row in rows]
        return f"the content of row {few(names)} differs" if rows else "a different number of samples"
    return ""


def _name(key: Key) -> str:
    loader, place = key
    return f"epoch {place.epoch}, step {place.step - 1}" + (f" of loader {loader}" if loader else "")


def _count_samples(steps: dict[Key, Step]) -> dict[tuple[int, int, str], int]:
    """Count the samples of each loader and epoch, by index; by content if a source has no indices."""
    counts: dict[tuple[int, int, str], int] = {}
    for (loader, place), step in steps.items():
        for index in step.digests if step.indices is None else step.indices:
            counts[loader, place.epoch, index] = counts.get((loader, place.epoch, index), 0) + 1
    return counts
