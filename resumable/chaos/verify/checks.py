"""The checks: each looks at one promise, and says in words what broke it; an empty text where nothing did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable.chaos.recorder.digest import SEPARATOR
from resumable.chaos.verify.checkpoint_checks import (
    atomic_saves,
    checkpoints_load,
    from_the_newest,
    same_checkpoints,
    same_place,
    true_states,
)
from resumable.chaos.verify.files import same_files
from resumable.chaos.verify.history import effective_history, is_resized, steps_of, without_a_place
from resumable.chaos.verify.ranks import ranks_agree, same_shares

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resumable.chaos.plan import Case
    from resumable.chaos.recorder.attempts import Attempt
    from resumable.chaos.verify.history import Key, Step

__all__ = ["ATOMIC", "CHECKS", "check"]

ATOMIC = "atomic saves"


def check(case: Case, baseline: Attempt, attempts: Sequence[Attempt]) -> dict[str, str]:
    """Run all checks.

    Returns:
        What broke each promise, by the check's name; empty where all hold.
    """
    found = {name: one(case, baseline, attempts) for name, one in CHECKS.items()}
    return {name: text for name, text in found.items() if text}


def comes_to_its_end(_: Case, __: Attempt, attempts: Sequence[Attempt]) -> str:
    """Started again in peace, the command ends well."""
    last = attempts[-1]
    if last.status == 0 and not last.killed:
        return ""
    how = f"was killed, as {last.killed}" if last.killed else f"failed with status {last.status}"
    return f"start {last.number}, in which nothing went wrong on purpose, {how}:\n{last.output}"


def same_content(_: Case, baseline: Attempt, attempts: Sequence[Attempt]) -> str:
    """Every attempt at a step sees the samples of the baseline run, with the same content."""
    expected = steps_of(baseline)
    for attempt in attempts:
        for key, step in steps_of(attempt).items():
            if key in expected and (difference := _differ(step, expected[key])):
                return (
                    f"start {attempt.number} trained on other data than the baseline run in {_name(key)}: {difference}"
                )
    return same_shares(baseline, attempts)


def whole_history(_: Case, baseline: Attempt, attempts: Sequence[Attempt]) -> str:
    """The weights hold every step of the baseline run once, and no other."""
    expected, found = _histories(baseline, attempts)
    lost, added = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if lost:
        return f"{len(lost)} steps of the baseline run are not in the weights, the first in {_name(lost[0])}"
    if added:
        return f"{len(added)} steps are in the weights that the baseline run has not, the first in {_name(added[0])}"
    return ""


def _histories(baseline: Attempt, attempts: Sequence[Attempt]) -> tuple[dict[Key, Step], dict[Key, Step]]:
    """Return what is in the weights of the baseline run and of a case, of the loaders that have a place."""
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
            times = f"{count} times, and {allowed.get((loader, epoch, index), 0)} times in the baseline run"
            return f"sample {index} was trained on {times}, in epoch {epoch} of loader {loader}"
    return ""


def same_weights(_: Case, baseline: Attempt, attempts: Sequence[Attempt]) -> str:
    """The final weights are those of the baseline run, bit for bit; above two ranks, up to rounding."""
    if any(is_resized(attempt, baseline) for attempt in attempts):
        return ""
    expected = {log.weights for log in baseline.ranks.values()}
    shown = [{log.weights for log in attempt.ranks.values() if log.weights} for attempt in attempts]
    found = next((weights for weights in reversed(shown) if weights), set())
    if expected in ({None}, found):
        return ""
    shown = [{text.partition(SEPARATOR)[0] for text in texts if text} for texts in (found, expected)]
    return f"final weights {shown[0]}, and {shown[1]} in the baseline run"


def no_orphans(_: Case, __: Attempt, attempts: Sequence[Attempt]) -> str:
    """No process lives on after the one that started it."""
    for attempt in attempts:
        if attempt.orphans:
            return f"the processes {attempt.orphans} lived on after the end of start {attempt.number}"
    return ""


CHECKS: dict[str, Callable[[Case, Attempt, Sequence[Attempt]], str]] = {
    "comes to its end": comes_to_its_end,
    "same content": same_content,
    "whole history": whole_history,
    "each sample once": each_sample_once,
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
        return f"samples {_few(wrong or found.indices)}, where it had {_few(expected.indices)}"
    if found.digests != expected.digests:
        rows = [
            row for row, (one, other) in enumerate(zip(found.digests, expected.digests, strict=False)) if one != other
        ]
        names = [f"{row} (sample {found.indices[row]})" if found.indices else str(row) for row in rows]
        return f"the content of row {_few(names)} differs" if rows else "another number of samples"
    return ""


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")  # noqa: PLR2004  # a line


def _name(key: Key) -> str:
    loader, place = key
    return f"epoch {place.epoch}, step {place.step - 1}" + (f" of loader {loader}" if loader else "")


def _count_samples(steps: dict[Key, Step]) -> dict[tuple[int, int, str], int]:
    """Count the samples of each loader and epoch, by their index; by their content where a source has no indices."""
    counts: dict[tuple[int, int, str], int] = {}
    for (loader, place), step in steps.items():
        for index in step.digests if step.indices is None else step.indices:
            counts[loader, place.epoch, index] = counts.get((loader, place.epoch, index), 0) + 1
    return counts
