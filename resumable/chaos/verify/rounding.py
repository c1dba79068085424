"""Above two ranks, weights are equal up to rounding: texts that differ by no more are made those of the baseline run.

So everything that compares afterwards can compare exactly. Data are compared exactly with any number of ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable.chaos.recorder.digest import EXACT, SEPARATOR, without_digest
from resumable.chaos.verify.history import is_resized
from resumable.chaos.verify.parts import saves_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resumable.chaos.recorder.attempts import Attempt

__all__ = ["TOLERANCE", "forgive_rounding"]

TOLERANCE = 1e-4  # of a tensor's norm: rounding was seen to make 1e-8, and a momentum that is lost 1e-2


def forgive_rounding(baseline: Attempt, attempts: Sequence[Attempt]) -> None:
    """Give what differs from the baseline run by rounding alone the texts that it has there."""
    if max((log.world for log in baseline.ranks.values()), default=1) <= EXACT:
        return
    saves = saves_of(baseline)
    updates = {(one.save, one.optimizer): one for log in baseline.ranks.values() for one in log.updates}
    weights = {log.weights for log in baseline.ranks.values() if log.weights}
    for log in (log for one in attempts if not is_resized(one, baseline) for log in one.ranks.values()):
        log.weights = log.weights and _known(log.weights, weights)
        for save in log.parts.keys() & saves.keys():
            for parts in log.parts[save]:
                _forgive(parts, saves[save])
        for update in log.updates:
            if known := updates.get((update.save, update.optimizer)):
                _forgive(update.weights, [known.weights])
                _forgive(update.state, [known.state])
    if attempts and not is_resized(attempts[-1], baseline) and (left := attempts[-1].left) and baseline.left:
        for name, parts in left.files.items():
            _forgive(parts, [baseline.left.files.get(name, {})])


def _forgive(parts: dict[str, str], known: Sequence[dict[str, str]]) -> None:
    for path, text in parts.items():
        parts[path] = _known(text, (other[path] for other in known if path in other))


def _known(text: str, expected: Iterable[str]) -> str:
    """Return the text of the baseline run that this one equals up to rounding; itself where there is none."""
    return next((other for other in expected if _is_close(text, other)), text)


def _is_close(text: str, other: str) -> bool:
    sketches, its_sketches = (one.split(SEPARATOR)[1:] for one in (text, other))
    alike = without_digest(text) == without_digest(other) and len(sketches) == len(its_sketches)
    return alike and all(map(_are_close, sketches, its_sketches))


def _are_close(sketch: str, other: str) -> bool:
    one, two = ([float(number) for number in text.split(",")] for text in (sketch, other))
    allowed = TOLERANCE * max(one[0], two[0])  # the norms
    return sketch == other or all(abs(number - its) <= allowed for number, its in zip(one, two, strict=True))
