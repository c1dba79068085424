"""The kinds of moments of a run: what its training process is about when it comes by a failpoint.

A crash does another harm in the middle of an epoch, between an epoch's last batch and its end, and in the middle of a
save; and the same harm at a thousand points in the middle of an epoch. So a plan has a case of every kind of moment
before it has a second one of any.
"""

from __future__ import annotations

from collections import Counter
from math import gcd
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["group_moments", "in_turn", "main_loader"]

_SAVING = ("store.", "torch.save", "lightning.save")
_READING = ("store.load",)  # the beginning of store.loaded, too
_MOVING = ("evaluation.handed", "loader.fetch", "loader.handed", "loader.epoch_end")

MIDDLE, BEFORE, AFTER, LAST = (
    "in the middle of an epoch",
    "at an epoch's last batch",
    "after an epoch's end",
    "at the end of the run",
)
SECOND, BETWEEN, SAVED, FIRST = "a second loader is read", "between two saves", "right after a save", "before any save"
WITHIN = "within a save"
INSIDE = f"{MIDDLE}, after a save in one"  # from which a resume does not begin an epoch

# What of a run of few cases comes first: where most scripts go wrong.
_ORDER = (
    INSIDE,
    f"{SAVED}, {AFTER}",
    AFTER,
    f"{SAVED}, {BEFORE}",
    BETWEEN,
    MIDDLE,
    f"{SECOND}, {MIDDLE}",
    f"{SECOND}, {BEFORE}",
    f"{SECOND}, {AFTER}",
    WITHIN,
    f"{SAVED}, {MIDDLE}",
    BEFORE,
    FIRST,
    LAST,
)
_GOLDEN = (5**0.5 - 1) / 2


def group_moments(points: Sequence[str], loaders: Mapping[int, int]) -> dict[str, list[int]]:
    """Group the failpoints of a training process by the kind of moment.

    Args:
        points: names, in their order.
        loaders: number of the loader that a point is about, by the number of the point, from 1.

    Returns:
        The numbers of the points, by the kind's name; those kinds first that a short plan has to have.
    """
    main = main_loader(loaders.get(place, 0) for place, name in enumerate(points, 1) if name == "loader.handed")
    phases, saves = _phases(points, loaders, main), list(_saves(points))
    kinds = [f"{WITHIN}, at {name}" if _is_saving(name) else phase for name, phase in zip(points, phases, strict=True)]
    for place in _second(points, loaders, main):
        kinds[place] = f"{SECOND}, {phases[place]}"
    for number, (begin, end) in enumerate(saves):
        following = saves[number + 1][0] if number + 1 < len(saves) else len(points)
        between = following < len(points) and not any(name in _MOVING for name in points[end:following])
        first = end - (points[end - 1] == "store.saved")
        last = following + 1 if between else min(end + 1, len(points))
        for place in range(max(first, begin + 1), last):
            kinds[place] = BETWEEN if between else f"{SAVED}, {phases[place]}"
        if phases[begin] == MIDDLE:
            kinds[end:following] = [INSIDE if kind == MIDDLE else kind for kind in kinds[end:following]]
    return _sort(kinds, saves[0][0] if saves else 0)


def _sort(kinds: Sequence[str], first: int) -> dict[str, list[int]]:
    """Group points; of those before the first save, from which nothing resumes, only what comes at no later time."""
    later = {*kinds[first:], *([MIDDLE] if INSIDE in kinds else [])}
    groups: dict[str, list[int]] = {}
    for place, kind in enumerate(kinds):
        groups.setdefault(FIRST if place < first and kind in later else kind, []).append(place + 1)
    return dict(sorted(groups.items(), key=lambda group: _rank(group[0])))


def _is_saving(name: str) -> bool:
    return name.startswith(_SAVING) and not name.startswith(_READING)


def _rank(kind: str) -> int:
    known = WITHIN if kind.startswith(WITHIN) else kind
    return _ORDER.index(known) if known in _ORDER else len(_ORDER)


def main_loader(delivering: Iterable[int]) -> int:
    """Return the loader that delivers most batches, the one that is trained on; of several, the first."""
    return max(Counter(delivering).items(), key=itemgetter(1), default=(0, 0))[0]


def _phases(points: Sequence[str], loaders: Mapping[int, int], main: int) -> list[str]:
    """Return where in an epoch of the main loader each point is."""
    phases, phase, batch = [], MIDDLE, None
    for place, name in enumerate(points):
        own = loaders.get(place + 1, main) == main
        phases.append(phase)
        if name == "loader.handed" and own:
            phases[place] = phase = MIDDLE
            batch = place
        elif (name == "loader.epoch_end" and own) or name == "lightning.epoch_end":
            begin = place if phase == AFTER or batch is None else batch
            phases[begin:] = [BEFORE if phase != AFTER else AFTER] * (place + 1 - begin)
            phase = AFTER
    if batch is not None:
        phases[batch:] = [LAST] * (len(points) - batch)
    return phases


def _saves(points: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield where each save begins, and the place after its last point."""
    begin = None
    for place, name in enumerate([*points, ""]):
        if begin is not None and (not _is_saving(name) or _opens(points[begin], points[place - 1], name)):
            yield begin, place
            begin = None
        if begin is None and _is_saving(name):
            begin = place


def _opens(first: str, before: str, name: str) -> bool:
    """Return whether a point that follows one of a save is the first one of another save."""
    if first == "store.save":
        return before == "store.saved"
    if first.startswith("store."):
        return name == "store.save"
    return name == first or (first.startswith("torch.save") and not name.startswith("torch.save"))


def _second(points: Sequence[str], loaders: Mapping[int, int], main: int) -> Iterator[int]:
    """Yield the places at which another loader than the main one is read, or a Trainer validates."""
    reads = False
    for place, name in enumerate(points):
        if not name.startswith("worker."):
            moves = name in _MOVING and loaders.get(place + 1, main) != main
            reads = moves or name.startswith(("evaluation.", "lightning.validation"))
        if reads:
            yield place


def in_turn(moments: Sequence[int], seed: int) -> list[int]:
    """Order moments so that the first ones of any number are spread, in step with nothing that a loop does.

    One comes after the other in steps of the golden ratio of the whole, or of a number close to it that has no divisor
    in common with the whole. The first is none of the first moments, from which little resumes.
    """
    count = len(moments)
    step = next((step for step in range(round(count * _GOLDEN), 2 * count) if gcd(step, count) == 1), 1)
    begin = int((seed + 1) * _GOLDEN % 1.0 * count)
    return [moments[(begin + number * step) % count] for number in range(count)]
