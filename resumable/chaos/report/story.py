"""What a rank did in one start of the command, as it is told in words and in pictures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from resumable.chaos.recorder.logs import RankLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resumable.chaos.plan import Case, Fault
    from resumable.chaos.recorder.attempts import Attempt
    from resumable.chaos.verify.history import Key

__all__ = ["Line", "as_ranges", "name_step", "tell"]

_SAVES = {"store.saved", "lightning.save"}
_BY_ITSELF = {"torch.save.written"}  # of a script that has none of those


@dataclass(frozen=True)
class Line:
    """One rank of one start.

    Args:
        start: its number.
        rank: of the process.
        world: number of ranks.
        resized: number of ranks of the start before, where it was another one.
        again: steps that an earlier start had trained on.
        trained: the other ones.
        evaluated: steps of the loaders from which nothing is trained.
        saves: the last step before each checkpoint; None where there was none.
        struck: whether the fault happened in this process.
        end: how it came to its end, in words.
        unacknowledged: steps that were delivered and not acknowledged, which a resume repeats by right.
        restarted: whether an agent in the command started it.
    """

    start: int
    rank: int
    world: int
    resized: int | None
    again: tuple[Key, ...]
    trained: tuple[Key, ...]
    saves: tuple[Key | None, ...]
    struck: bool
    end: str
    unacknowledged: tuple[Key, ...] = ()
    restarted: bool = False
    evaluated: tuple[Key, ...] = ()


def tell(case: Case, attempts: Sequence[Attempt], evaluating: frozenset[int] = frozenset()) -> list[Line]:
    """Return what each rank did in each start.

    Args:
        case: the faults.
        attempts: what each start did.
        evaluating: numbers of the loaders from which nothing is trained.
    """
    lines: list[Line] = []
    seen: set[Key] = set()
    worlds = [_world(case, attempt) for attempt in attempts]
    for attempt, world, before in zip(attempts, worlds, [None, *worlds], strict=False):
        fault = case.legs[attempt.leg].fault if attempt.fired and attempt.leg < len(case.legs) else None
        resized = before if before != world else None
        for rank, log in sorted(attempt.ranks.items()) or [(0, RankLog(0, world))]:
            every = list(log.trained())
            steps = [key for key in every if key[0] not in evaluating]
            evaluated = tuple(key for key in every if key[0] in evaluating)
            again = tuple(key for key in steps if key in seen)
            trained = tuple(key for key in steps if key not in seen)
            struck = fault is not None and _hits(fault, rank)
            end = _end(attempt, fault, struck=struck)
            line = Line(attempt.number, rank, world, resized, again, trained, _saves(log), struck, end)
            line = replace(line, unacknowledged=tuple(log.unacknowledged()), evaluated=evaluated)
            lines.append(replace(line, restarted=attempt.restarts > 0))
        seen.update(attempt.trained())
    return lines


def _hits(fault: Fault, rank: int) -> bool:
    return fault.after is not None or fault.target == "all" or (fault.target != "agent" and fault.rank == rank)


def _world(case: Case, attempt: Attempt) -> int:
    planned = case.legs[min(attempt.leg, len(case.legs) - 1)].ranks
    return max((log.world for log in attempt.ranks.values()), default=planned)


def _saves(log: RankLog) -> tuple[Key | None, ...]:
    saves: list[Key | None] = []
    keys, handed = list(log.batches), 0
    points = _SAVES if _SAVES & set(log.points) else _BY_ITSELF
    for point in log.points:
        handed += point == "loader.handed"
        if point in points:
            saves.append(keys[min(handed, len(keys)) - 1] if handed and keys else None)
    return tuple(saves if points is _SAVES else dict.fromkeys(saves))


def _end(attempt: Attempt, fault: Fault | None, *, struck: bool) -> str:
    words = [str(fault) if struck or fault.target == "agent" else "the fault came to another rank"] if fault else []
    if attempt.killed and not (fault and fault.after is not None):
        words.append(f"killed, as {attempt.killed}")
    elif attempt.status is None:
        words += [] if struck else ["ended by the agent"]
    elif attempt.status == 0 and not attempt.killed:
        words.append("came to its end")
    elif fault is None:
        words.append(f"failed with status {attempt.status}")
    return ", ".join(words)


def as_ranges(keys: Iterable[Key]) -> list[tuple[Key, Key]]:
    """Put steps that follow one another in one epoch of a loader together: the first and the last of each range."""
    ordered = sorted(keys)
    if not ordered:
        return []
    gaps = [number for number, (one, other) in enumerate(pairwise(ordered), start=1) if not _follows(one, other)]
    return [(ordered[first], ordered[last - 1]) for first, last in pairwise([0, *gaps, len(ordered)])]


def _follows(one: Key, other: Key) -> bool:
    return (one[0], one[1].epoch, one[1].step + 1) == (other[0], other[1].epoch, other[1].step)


def name_step(key: Key) -> str:
    """Name a step `epoch.step`, both counted from 0, of the first loader or another one."""
    loader, place = key
    return f"{place.epoch}.{place.step - 1}" + (f" of loader {loader}" if loader else "")
