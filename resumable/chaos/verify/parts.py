"""What each checkpoint of a store, and each file that was saved, holds beside what it holds in the baseline run."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable.chaos.verify.history import is_resized, lengths_of, ordinal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from resumable.chaos.recorder.attempts import Attempt
    from resumable.chaos.recorder.logs import Save

__all__ = ["Compared", "compared", "compared_files", "count_compared", "differences", "saves_of"]


class Compared(NamedTuple):
    """One save of one rank, beside those of the same step of the baseline run.

    Args:
        start: its number.
        save: name of the store, and the step.
        found: text of each part, by its path.
        expected: the same in the baseline run, for each time that the step was saved there.
    """

    start: int
    save: Save
    found: dict[str, str]
    expected: list[dict[str, str]]

    @property
    def step(self) -> int:
        """The step of the checkpoint."""
        return self.save[1]

    @property
    def differing(self) -> list[str]:
        """Paths of the parts that are not as in the baseline run; what only one of the two has is one of them."""
        every = set().union(*self.expected)
        known = {path: {parts.get(path) for parts in self.expected} for path in every}
        return [path for path in sorted(every) if self.found.get(path) not in known[path]]

    @property
    def equal(self) -> list[str]:
        """Paths of the parts that are as in the baseline run."""
        return sorted(set().union(*self.expected).difference(self.differing))


def saves_of(attempt: Attempt) -> dict[Save, list[dict[str, str]]]:
    """Return the parts of each checkpoint, for each rank and each time that it was saved."""
    found: dict[Save, list[dict[str, str]]] = {}
    for log in attempt.ranks.values():
        for save, contents in log.parts.items():
            if save[0] not in log.drafts:
                found.setdefault(save, []).extend(contents)
    return found


def compared(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[Compared]:
    """Yield the saves of starts, in their order, which the baseline run has, too; until the number of ranks changes."""
    expected, is_known = saves_of(baseline), _known(baseline)
    for attempt, save in _saves(baseline, attempts):
        if is_known(attempt, save):
            for log in attempt.ranks.values():
                for parts in log.parts.get(save, ()):
                    yield Compared(attempt.number, save, parts, expected[save])


def differences(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[Compared]:
    """Yield the saves that differ."""
    return (one for one in compared(baseline, attempts) if one.differing)


def count_compared(baseline: Attempt, attempts: Sequence[Attempt]) -> tuple[int, int]:
    """Count the checkpoints that were compared, and those of steps at which no baseline run saved one."""
    is_known = _known(baseline)
    saves = [is_known(attempt, save) for attempt, save in _saves(baseline, attempts)]
    return sum(saves), len(saves) - sum(saves)


def compared_files(baseline: Attempt, attempts: Sequence[Attempt]) -> dict[str, bool]:
    """Return whether what each saved file held last was compared, by its path in the case."""
    is_known = _known(baseline)
    files: dict[str, bool] = {}
    for attempt in attempts:
        for log in attempt.ranks.values():
            for name in log.moved:
                files.pop(name, None)
            for name, save in log.saves.items():
                files[name] = is_known(attempt, save) and not is_resized(attempt, baseline)
    return files


def _known(baseline: Attempt) -> Callable[[Attempt, Any], bool]:
    """Return what tells whether the baseline run saved at a step, too; on the same side of an epoch's end.

    Before the end and after it, a loop has done as many steps and not the same.
    """
    expected, lengths = saves_of(baseline), lengths_of(baseline)

    def is_known(attempt: Attempt, save: Save) -> bool:
        places = [
            (place, other)
            for rank, log in attempt.ranks.items()
            if rank in baseline.ranks
            for place, other in zip(log.held.get(save, ()), baseline.ranks[rank].held.get(save, ()), strict=False)
        ]
        beyond = any(one != other and ordinal(one, lengths) == ordinal(other, lengths) for one, other in places)
        return save in expected and not beyond

    return is_known


def _saves(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[tuple[Attempt, Save]]:
    drafts = {series for log in baseline.ranks.values() for series in log.drafts}
    for attempt in takewhile(lambda attempt: not is_resized(attempt, baseline), attempts):
        saves = dict.fromkeys(save for log in attempt.ranks.values() for save in log.parts)
        drafts |= {series for log in attempt.ranks.values() for series in log.drafts}
        yield from ((attempt, save) for save in saves if save[0] not in drafts)
