"""Whether a loader is earlier or later than the weights, in files that a script saves: they have the loader's place.

So the place is the same in both by definition, and what counts the steps tells: where a counter of a resumed start has
the value that it has in the baseline run, the loader has to have come as far.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from resumable.chaos.verify.parts import saves_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resumable.chaos.recorder.attempts import Attempt

__all__ = ["signs_of_counts"]


def signs_of_counts(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[tuple[str, str]]:
    """Yield by how much the loader is earlier or later, if all counters say so.

    One that a resume forgot lacks as many steps as the run had done, and says nothing of the loader.
    """
    resumed = {save[1] for attempt in attempts for log in attempt.ranks.values() for save in log.resumed}
    shifts = set(_shifts(baseline, attempts))
    by = min(shifts, key=abs, default=0)
    if by and all(by * shift > 0 for shift in shifts) and by not in resumed:
        yield ("place later" if by > 0 else "place earlier"), f"{abs(by)} batch{'es' * (abs(by) > 1)}"


def _shifts(baseline: Attempt, attempts: Sequence[Attempt]) -> Iterator[int]:
    places = _places(baseline)
    for attempt in attempts[1:]:
        for (series, step), contents in saves_of(attempt).items():
            for path, text in (item for parts in contents for item in parts.items()):
                if (place := places.get((series, path), {}).get(text)) is not None:
                    yield step - place


def _places(baseline: Attempt) -> dict[tuple[str, str], dict[str, int]]:
    """Return at which step each counter in the files has which value: numbers that grow from save to save."""
    files = {save[0] for log in baseline.ranks.values() for save in log.saves.values()}
    values: dict[tuple[str, str], dict[str, int]] = {}
    for (series, step), contents in sorted(saves_of(baseline).items(), key=lambda item: item[0][1]):
        if series in files:
            for path, text in contents[-1].items():
                if text.isdecimal():
                    values.setdefault((series, path), {}).setdefault(text, step)
    return {
        key: known
        for key, known in values.items()
        if len(known) > 1 and all(int(one) < int(other) for one, other in pairwise(known))
    }
