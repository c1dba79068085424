"""Which faults happen when: cases, and the ways to choose them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import chain
from operator import length_hint
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable.chaos.moments import group_moments, in_turn
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["FAULTS", "Case", "Fault", "Leg", "Survey", "by_the_clock", "exhaustive", "limited", "pairs", "randomly"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault.

    Args:
        meaning: what happens.
        does: what the process does to itself (`fire.py`).
        points: where it can happen; the beginnings of names.
        storage: what is done to the checkpoints after it (`storage.py`).
        in_worker: it happens in a worker process.
        saves: checkpoints that have to be in the store before.
    """

    meaning: str
    does: str
    points: tuple[str, ...] = ("",)
    storage: str | None = None
    in_worker: bool = False
    saves: int = 0


_STORE = ("store.half", "store.written", "store.rename", "torch.save.half")

FAULTS = {
    "kill": Kind("SIGKILL", "kill"),
    "term": Kind("SIGTERM, and SIGKILL after a grace period", "term"),
    "stop": Kind("SIGSTOP, as by a debugger or an overloaded host; killed when it is noticed", "stop"),
    "hang": Kind("an endless wait; killed when it is noticed", "hang"),
    "raise": Kind("an exception in the training step", "raise", ("loader.handed",)),
    "oom": Kind("no memory is left", "oom", ("loader.handed",)),
    "eio": Kind("the storage fails while a checkpoint is written", "eio", _STORE),
    "enospc": Kind("the storage is full while a checkpoint is written", "enospc", _STORE),
    "slow": Kind("the storage takes half a second", "slow", _STORE),
    "torn-write": Kind("SIGKILL while a checkpoint is written", "kill", ("store.", "torch.save.")),
    "truncate": Kind("SIGKILL, and the newest checkpoint has lost its end", "kill", storage="truncate", saves=2),
    "flip": Kind("SIGKILL, and a bit of the newest checkpoint has changed", "kill", storage="flip", saves=2),
    "lost-fsync": Kind("power cut: what was not made durable is lost", "kill", ("store.",), storage="lost-fsync"),
    "stale": Kind("SIGKILL, and the newest checkpoint is gone", "kill", storage="stale", saves=1),
    "clock": Kind("the clock jumps back a day", "clock-back"),
    "worker-kill": Kind("a worker process is killed", "kill", ("worker.",), in_worker=True),
    "worker-raise": Kind("a sample cannot be read in a worker process", "raise", ("worker.read",), in_worker=True),
}


TARGETS = {"": "", "rank": " of rank {rank}", "agent": " of the agent", "all": " of all processes"}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault in one process.

    Args:
        kind: one of `FAULTS`.
        number: how often the process comes by a failpoint until then, this time included.
        point: count only the points of this name.
        rank: of the process.
        after: seconds from the start of the command; it is then done from outside, to all its processes.
        target: "rank", "agent" for the process that started the ranks, or "all"; empty where there is one process.
    """

    kind: str
    number: int
    point: str | None = None
    rank: int = 0
    after: float | None = None
    target: str = ""

    def __str__(self) -> str:
        if self.after is not None:
            return f"{self.kind} after {self.after:.1f} s"
        where = f"{self.point} number {self.number}" if self.point else f"point {self.number}"
        return f"{self.kind}{TARGETS[self.target].format(rank=self.rank)} at {where}" + self._counted_by()

    def _counted_by(self) -> str:
        """Say whose points are counted, where it is not the one that is hit, nor the first."""
        return f" of rank {self.rank}" if self.rank and self.target != "rank" else ""

    def as_plan(self) -> dict[str, Any]:
        """Return what the agent in the process is told."""
        kind = FAULTS[self.kind]
        return {**asdict(self), "kind": kind.does, "in_worker": kind.in_worker}


@dataclass(frozen=True, slots=True)
class Leg:
    """One start of the command: with how many ranks, and what goes wrong in it."""

    fault: Fault | None = None
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class Case:
    """A run: one leg after the other, the last of them in peace."""

    legs: tuple[Leg, ...]

    def __str__(self) -> str:
        faults = [str(leg.fault) for leg in self.legs if leg.fault]
        ranks = [str(leg.ranks) for leg in self.legs]
        resized = f", ranks {' to '.join(ranks)}" if len(set(ranks)) > 1 else ""
        return (", then ".join(faults) or "baseline") + resized

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"legs": [asdict(leg) for leg in self.legs]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Case:
        """Make the case of `as_dict`'s values."""
        return cls(tuple(Leg(leg["fault"] and Fault(**leg["fault"]), leg["ranks"]) for leg in values["legs"]))


@dataclass(frozen=True, slots=True)
class Survey:
    """What the baseline run came by: the failpoints of rank 0 in their order, and of one of its workers.

    Args:
        points: names, in the order of the training process.
        worker_points: names, in the order of a worker process; empty where there was none.
        saved: how many points had passed when each checkpoint was committed to a store.
        ranks: the numbers of ranks to start with, in turn.
        loaders: numbers of the loaders that points are about, by the numbers of the points.
    """

    points: Sequence[str]
    worker_points: Sequence[str]
    saved: Sequence[int]
    ranks: tuple[int, ...] = (1,)
    loaders: Mapping[int, int] = field(default_factory=dict)

    def moments(self, kind: str) -> list[int]:
        """Return the numbers of the points at which a kind of fault can happen."""
        known = FAULTS[kind]
        points = self.worker_points if known.in_worker else self.points
        if len(self.saved) < known.saves:
            return []
        first = self.saved[known.saves - 1] if known.saves else 0
        return [
            number
            for number, name in enumerate(points, start=1)
            if number > first and any(name.startswith(start) for start in known.points)
        ]

    def reason(self, kind: str) -> str:
        """Say why a kind of fault cannot happen; an empty text where it can."""
        if self.moments(kind):
            return ""
        known = FAULTS[kind]
        if known.in_worker:
            return "its workers read nothing that is watched" if self.worker_points else "it has no worker processes"
        if len(self.saved) < known.saves:
            return f"it saves {len(self.saved)} checkpoints that are watched, and {known.saves} have to be there"
        if known.points[0].startswith("store."):
            return "it writes no checkpoint by CheckpointStore or CheckedCheckpointIO"
        return "it never comes by a point at which that can happen"

    def legs(self, *faults: Fault) -> Case:
        """Make a case of faults, one per leg."""
        return Case(
            tuple(Leg(fault, self.ranks[number % len(self.ranks)]) for number, fault in enumerate([*faults, None]))
        )


class Exhaustive(NamedTuple):
    """A case for every kind of fault at every moment.

    Args:
        cases: first those of each kind of moment, one for each; then one of each kind of fault; then the others.
        least: number of the cases that all kinds of moments and of faults need.
        number: of all cases.
    """

    cases: Iterator[Case]
    least: int
    number: int


def exhaustive(survey: Survey, kinds: Sequence[str], seed: int = 0) -> Exhaustive:
    """Put every kind of fault at every moment in an order in which any number of the first cases covers most.

    Args:
        survey: of the baseline run.
        kinds: of faults.
        seed: chooses the moment, of those of one kind, that is taken first.
    """
    queues = _queues(survey, kinds, seed)
    first = _cover(queues)
    return Exhaustive(
        (survey.legs(fault) for fault in chain(first, _rounds(queues))),
        len(first),
        len(first) + sum(length_hint(queue) for queue in queues.values()),
    )


def limited(cases: Iterable[Case], limit: int) -> Iterator[Case]:
    """Yield the first cases of each kind of fault, so many."""
    seen: Counter[str] = Counter()
    for case in cases:
        kind = next(leg.fault.kind for leg in case.legs if leg.fault)
        seen[kind] += 1
        if seen[kind] <= limit:
            yield case


def _queues(survey: Survey, kinds: Sequence[str], seed: int) -> dict[tuple[str, str], Iterator[int]]:
    """Return the points for each kind of moment and of fault, each in the order in which they are taken."""
    groups = {False: group_moments(survey.points, survey.loaders), True: _group_workers(survey.worker_points)}
    possible = {kind: set(survey.moments(kind)) for kind in kinds}
    found = {
        (moment, kind): [point for point in points if point in possible[kind]]
        for worker, moments in groups.items()
        for moment, points in moments.items()
        for kind in kinds
        if FAULTS[kind].in_worker is worker
    }
    some = [(key, points) for key, points in found.items() if points]
    return {key: iter(in_turn(points, seed + number)) for number, (key, points) in enumerate(some)}


def _group_workers(points: Sequence[str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for number, name in enumerate(points, start=1):
        groups.setdefault(f"in a worker, at {name}", []).append(number)
    return groups


def _cover(queues: dict[tuple[str, str], Iterator[int]]) -> list[Fault]:
    """Take a fault for each kind of moment, of the first kind that can happen there; then one of each other kind."""
    chosen: dict[str, tuple[str, str]] = {}
    for moment, kind in queues:
        chosen.setdefault(moment, (moment, kind))
    others = {kind: (moment, kind) for moment, kind in reversed(queues)}
    used = {kind for _, kind in chosen.values()}
    keys = [*chosen.values(), *(key for kind, key in others.items() if kind not in used)]
    return [Fault(key[1], next(queues[key])) for key in keys]


def _rounds(queues: Mapping[tuple[str, str], Iterator[int]]) -> Iterator[Fault]:
    """Take a fault from each queue in turn until they are empty."""
    left = list(queues.items())
    while left:
        taken = [(key, queue, next(queue, None)) for key, queue in left]
        yield from (Fault(kind, number) for (_, kind), _, number in taken if number is not None)
        left = [(key, queue) for key, queue, number in taken if number is not None]


def pairs(survey: Survey, kinds: Sequence[str], seed: int, number: int) -> Iterator[Case]:
    """Yield cases of two faults: the second while the first is being recovered from, or soon after."""
    generator = random.Random(seed)
    for _ in range(number):
        first = _choose(generator, survey, kinds)
        second = Fault("kill", generator.randint(1, max(len(survey.points) - first.number, 8) // 2))
        yield survey.legs(first, second)


def randomly(survey: Survey, kinds: Sequence[str], seed: int, number: int) -> Iterator[Case]:
    """Yield cases of one to three faults at random moments."""
    generator = random.Random(seed)
    for _ in range(number):
        faults = [_choose(generator, survey, kinds)]
        while len(faults) < 3 and generator.random() < 0.5:  # noqa: PLR2004  # as the docstring says
            faults.append(Fault("kill", generator.randint(1, 8)))
        yield survey.legs(*faults)


def by_the_clock(survey: Survey, mean: float, failures: int, seed: int) -> Case:
    """Make the case of failures at random times, without memory of one another, as machines fail.

    Args:
        survey: of the baseline run.
        mean: time between two failures, in seconds.
        failures: their number.
        seed: of the times.
    """
    generator = random.Random(seed)
    times = [round(generator.expovariate(1 / mean), 3) for _ in range(failures)]
    return survey.legs(*(Fault("kill", 0, after=time) for time in times))


def _choose(generator: random.Random, survey: Survey, kinds: Sequence[str]) -> Fault:
    possible = {kind: moments for kind in kinds if (moments := survey.moments(kind))}
    if not possible:
        raise ConfigurationError(
            f"none of the faults {', '.join(kinds)} can happen in this run: it never comes by their failpoints.\n"
            "Use other kinds, or a script that saves checkpoints and has workers."
        )
    kind = generator.choice(sorted(possible))
    return Fault(kind, generator.choice(possible[kind]), rank=generator.randrange(survey.ranks[0]))
