"""Which faults happen at which failpoints: cases, and the ways to choose them."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, count
from math import gcd
from operator import itemgetter, length_hint
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from resumable.chaos.ledger import Attempt


__all__ = [
    "FAULTS",
    "Case",
    "Fault",
    "Launch",
    "Survey",
    "aim",
    "by_the_clock",
    "exhaustive",
    "group_moments",
    "in_turn",
    "limited",
    "main_loader",
    "note_sizes",
    "note_targets",
    "pairs",
    "randomly",
]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault.

    Args:
        meaning: what happens.
        does: what the process does to itself.
        points: prefixes of the failpoints at which it can happen.
        storage: what is done to the checkpoints afterwards.
        in_worker: whether it happens in a worker process.
        saves: number of checkpoints that must exist before.
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
    "stop": Kind("SIGSTOP, as from a debugger or an overloaded host; killed once detected", "stop"),
    "hang": Kind("an endless wait; killed once detected", "hang"),
    "raise": Kind("an exception in the training step", "raise", ("loader.handed",)),
    "oom": Kind("out of memory", "oom", ("loader.handed",)),
    "eio": Kind("an I/O error while a checkpoint is written", "eio", _STORE),
    "enospc": Kind("a full disk while a checkpoint is written", "enospc", _STORE),
    "slow": Kind("storage that is slower by half a second", "slow", _STORE),
    "torn-write": Kind("SIGKILL while a checkpoint is written", "kill", ("store.", "torch.save.")),
    "truncate": Kind("SIGKILL, and the newest checkpoint is truncated", "kill", storage="truncate", saves=2),
    "flip": Kind("SIGKILL, and one bit of the newest checkpoint is flipped", "kill", storage="flip", saves=2),
    "lost-fsync": Kind("power cut: data that was not durable is lost", "kill", ("store.",), storage="lost-fsync"),
    "stale": Kind("SIGKILL, and the newest checkpoint is missing", "kill", storage="stale", saves=1),
    "clock": Kind("the clock jumps one day back", "clock-back"),
    "worker-kill": Kind("a worker process is killed", "kill", ("worker.",), in_worker=True),
    "worker-raise": Kind("a sample cannot be read in a worker process", "raise", ("worker.read",), in_worker=True),
}


TARGETS = {"": "", "rank": " of rank {rank}", "agent": " of the agent", "all": " of all processes"}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault in one process.

    Args:
        kind: one of `FAULTS`.
        number: which failpoint of the process it is, counted from 1.
        point: count only failpoints with this name.
        rank: of the process.
        after: seconds after the launch; the fault is then from outside and hits all processes.
        target: "rank", "agent" for the process that started the ranks, or "all"; empty if there is only one process.
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
        """Name the rank that counts the failpoints, unless it is the first one or the one that is hit."""
        return f" of rank {self.rank}" if self.rank and self.target != "rank" else ""

    def as_plan(self) -> dict[str, Any]:
        """Return the values for the agent in the process."""
        kind = FAULTS[self.kind]
        return {**asdict(self), "kind": kind.does, "in_worker": kind.in_worker}


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of the command: its number of ranks and its fault."""

    fault: Fault | None = None
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class Case:
    """A run: several launches in a row, the last of them without a fault."""

    launches: tuple[Launch, ...]

    def __str__(self) -> str:
        ranks = [str(launch.ranks) for launch in self.launches]
        resized = f", ranks {' to '.join(ranks)}" if len(set(ranks)) > 1 else ""
        return (", then ".join(map(str, self.faults)) or "baseline") + resized

    @property
    def faults(self) -> list[Fault]:
        """The faults of its launches, in order."""
        return [launch.fault for launch in self.launches if launch.fault]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; the launches are called `legs` in files."""
        return {"legs": [asdict(launch) for launch in self.launches]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Case:
        """Create the case from the values of `as_dict`."""
        return cls(tuple(Launch(one["fault"] and Fault(**one["fault"]), one["ranks"]) for one in values["legs"]))


@dataclass(frozen=True, slots=True)
class Survey:
    """The failpoints of the baseline run, in rank 0 and in one of its workers.

    Args:
        points: names, in the order of the training process.
        worker_points: names, in the order of a worker process; empty if there was none.
        saved: number of failpoints passed when each checkpoint was committed to a store.
        ranks: the numbers of ranks of successive launches.
        loaders: from the number of a failpoint to the number of its loader.
    """

    points: Sequence[str]
    worker_points: Sequence[str]
    saved: Sequence[int]
    ranks: tuple[int, ...] = (1,)
    loaders: Mapping[int, int] = field(default_factory=dict)

    def moments(self, kind: str) -> list[int]:
        """Return the numbers of the failpoints at which a kind of fault can happen."""
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
        """Explain why a kind of fault cannot happen; an empty string if it can."""
        if self.moments(kind):
            return ""
        known = FAULTS[kind]
        if known.in_worker:
            return "its workers read nothing that is observed" if self.worker_points else "it has no worker processes"
        if len(self.saved) < known.saves:
            return f"it saves {len(self.saved)} observed checkpoints, but {known.saves} are needed"
        if known.points[0].startswith("store."):
            return "it writes no checkpoint with CheckpointStore or CheckedCheckpointIO"
        return "it passes no failpoint at which this can happen"

    def case(self, *faults: Fault) -> Case:
        """Create a case from faults, one per launch."""
        return Case(
            tuple(Launch(fault, self.ranks[number % len(self.ranks)]) for number, fault in enumerate([*faults, None]))
        )


class Exhaustive(NamedTuple):
    """A case for every kind of fault at every failpoint.

    Args:
        cases: first one for each type of failpoint, then one for each kind of fault, then the others.
        least: number of cases that cover all types of failpoints and kinds of faults.
        number: number of all cases.
    """

    cases: Iterator[Case]
    least: int
    number: int


def exhaustive(survey: Survey, kinds: Sequence[str], seed: int = 0) -> Exhaustive:
    """Order all faults at all failpoints: any number of first cases covers as much as possible.

    Args:
        survey: of the baseline run.
        kinds: of faults.
        seed: chooses the failpoint that represents its type first.
    """
    queues = _queues(survey, kinds, seed)
    first = _cover(queues)
    return Exhaustive(
        (survey.case(fault) for fault in chain(first, _rounds(queues))),
        len(first),
        len(first) + sum(length_hint(queue) for queue in queues.values()),
    )


def limited(cases: Iterable[Case], limit: int) -> Iterator[Case]:
    """Yield at most `limit` cases of each kind of fault."""
    seen: Counter[str] = Counter()
    for case in cases:
        kind = case.faults[0].kind
        seen[kind] += 1
        if seen[kind] <= limit:
            yield case


def _queues(survey: Survey, kinds: Sequence[str], seed: int) -> dict[tuple[str, str], Iterator[int]]:
    """Return the failpoints by type and kind of fault, each in the order in which they are used."""
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
    """Choose one fault for each type of failpoint, then one for each kind of fault not yet used."""
    chosen: dict[str, tuple[str, str]] = {}
    for moment, kind in queues:
        chosen.setdefault(moment, (moment, kind))
    others = {kind: (moment, kind) for moment, kind in reversed(queues)}
    used = {kind for _, kind in chosen.values()}
    keys = [*chosen.values(), *(key for kind, key in others.items() if kind not in used)]
    return [Fault(key[1], next(queues[key])) for key in keys]


def _rounds(queues: Mapping[tuple[str, str], Iterator[int]]) -> Iterator[Fault]:
    """Take one fault from each queue per round until all are empty."""
    left = list(queues.items())
    while left:
        taken = [(key, queue, next(queue, None)) for key, queue in left]
        yield from (Fault(kind, number) for (_, kind), _, number in taken if number is not None)
        left = [(key, queue) for key, queue, number in taken if number is not None]


def pairs(survey: Survey, kinds: Sequence[str], seed: int, number: int) -> Iterator[Case]:
    """Yield cases with two faults, the second one during or soon after the recovery from the first."""
    generator = random.Random(seed)
    for _ in range(number):
        first = _choose(generator, survey, kinds)
        second = Fault("kill", generator.randint(1, max(len(survey.points) - first.number, 8) // 2))
        yield survey.case(first, second)


def randomly(survey: Survey, kinds: Sequence[str], seed: int, number: int) -> Iterator[Case]:
    """Yield cases with one to three faults at random failpoints."""
    generator = random.Random(seed)
    for _ in range(number):
        faults = [_choose(generator, survey, kinds)]
        while len(faults) < 3 and generator.random() < 0.5:  # noqa: PLR2004  # as the docstring says
            faults.append(Fault("kill", generator.randint(1, 8)))
        yield survey.case(*faults)


def by_the_clock(survey: Survey, mean: float, failures: int, seed: int) -> Case:
    """Create the case of failures at random, independent times, as machines fail.

    Args:
        survey: of the baseline run.
        mean: mean time between two failures, in seconds.
        failures: their number.
        seed: of the times.
    """
    generator = random.Random(seed)
    times = [round(generator.expovariate(1 / mean), 3) for _ in range(failures)]
    return survey.case(*(Fault("kill", 0, after=time) for time in times))


def _choose(generator: random.Random, survey: Survey, kinds: Sequence[str]) -> Fault:
    possible = {kind: moments for kind in kinds if (moments := survey.moments(kind))}
    if not possible:
        raise ConfigurationError(
            f"none of the faults {', '.join(kinds)} can happen in this run: it passes none of their failpoints.\n"
            "Use other kinds, or a script that saves checkpoints and has workers."
        )
    kind = generator.choice(sorted(possible))
    return Fault(kind, generator.choice(possible[kind]), rank=generator.randrange(survey.ranks[0]))


# Types of failpoints: the phase of the training process.
#
# Crashes in the middle of an epoch, between an epoch's last batch and its end, and in the middle of a save cause
# different damage; a thousand failpoints in the middle of an epoch all cause the same. So a plan has a case of every
# type before it has a second case of any.

_SAVING = ("store.", "torch.save", "lightning.save")
_READING = ("store.load",)  # includes store.loaded
_MOVING = ("evaluation.handed", "loader.fetch", "loader.handed", "loader.epoch_end")

MIDDLE, BEFORE, AFTER, LAST = (
    "in the middle of an epoch",
    "at an epoch's last batch",
    "after an epoch's end",
    "at the end of the run",
)
SECOND, BETWEEN, SAVED, FIRST = "a second loader is read", "between two saves", "right after a save", "before any save"
WITHIN = "within a save"
INSIDE = f"{MIDDLE}, after a save in one"  # a resume from there does not start an epoch

# The order for runs with few cases: where scripts fail most often.
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
    """Group the failpoints of a training process by type.

    Args:
        points: names, in order.
        loaders: from the number of a failpoint, counted from 1, to the number of its loader.

    Returns:
        The numbers of the failpoints by type, starting with the types that a short plan needs most.
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
    """Group failpoints. Before the first save, nothing can resume, so only types that never occur later are kept."""
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
    """Return the loader that delivers most batches, which is the one trained on; the first one in a tie."""
    return max(Counter(delivering).items(), key=itemgetter(1), default=(0, 0))[0]


def _phases(points: Sequence[str], loaders: Mapping[int, int], main: int) -> list[str]:
    """Return the phase of the main loader's epoch at each failpoint."""
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
    """Yield the index at which each save starts, and the index after its last failpoint."""
    begin = None
    for place, name in enumerate([*points, ""]):
        if begin is not None and (not _is_saving(name) or _opens(points[begin], points[place - 1], name)):
            yield begin, place
            begin = None
        if begin is None and _is_saving(name):
            begin = place


def _opens(first: str, before: str, name: str) -> bool:
    """Return whether a failpoint after one of a save starts another save."""
    if first == "store.save":
        return before == "store.saved"
    if first.startswith("store."):
        return name == "store.save"
    return name == first or (first.startswith("torch.save") and not name.startswith("torch.save"))


def _second(points: Sequence[str], loaders: Mapping[int, int], main: int) -> Iterator[int]:
    """Yield the indices at which a loader other than the main one is read, or a Trainer validates."""
    reads = False
    for place, name in enumerate(points):
        if not name.startswith("worker."):
            moves = name in _MOVING and loaders.get(place + 1, main) != main
            reads = moves or name.startswith(("evaluation.", "lightning.validation"))
        if reads:
            yield place


def in_turn(moments: Sequence[int], seed: int) -> list[int]:
    """Order failpoints: any number of first ones is spread, out of step with any loop.

    The step is the golden ratio of their number, rounded to a number that is coprime to it. The order does not start
    with the earliest failpoints, from which little resumes.
    """
    count = len(moments)
    step = next((step for step in range(round(count * _GOLDEN), 2 * count) if gcd(step, count) == 1), 1)
    begin = int((seed + 1) * _GOLDEN % 1.0 * count)
    return [moments[(begin + number * step) % count] for number in range(count)]


# Targets of faults with several ranks: one rank, the agent that started them, or all processes.

_SIGNALS = {"kill", "term"}  # faults that can hit a process other than the one at the failpoint
_SAVES = ("store.", "torch.save.", "lightning.save")  # points in a save


def aim(cases: Sequence[Case], baseline: Attempt) -> list[Case]:
    """Distribute the faults over the possible targets if there are several ranks, without more cases.

    The failpoints stay the ones of rank 0. A fault in a save hits rank 0, which saves, or all; a power cut hits all.

    Args:
        cases: with each fault at a failpoint of rank 0.
        baseline: the record of the run without faults.
    """
    if len(baseline.ranks) < 2:  # noqa: PLR2004  # several
        return list(cases)
    turns: dict[tuple[str, int], count[int]] = defaultdict(count)

    def turn(fault: Fault | None, ranks: int) -> Fault | None:
        if fault is None or fault.after is not None or FAULTS[fault.kind].in_worker:
            return fault
        known = baseline.ranks if ranks == cases[0].launches[0].ranks else range(ranks)
        places = list(_targets(fault, sorted(known), baseline))
        target, rank = places[next(turns[fault.kind, len(places)]) % len(places)]
        return replace(fault, target=target, rank=rank, number=_same_moment(fault, rank, baseline))

    return [
        replace(case, launches=tuple(replace(one, fault=turn(one.fault, one.ranks)) for one in case.launches))
        for case in cases
    ]


def _targets(fault: Fault, ranks: Sequence[int], baseline: Attempt) -> Iterator[tuple[str, int]]:
    """Yield the possible targets of a fault, and the rank that counts the failpoints; rank 1 comes first."""
    leader, *others = ranks
    kind, log = FAULTS[fault.kind], baseline.ranks[leader]
    if kind.storage is None and not _is_in_a_save(fault, log.points):
        yield from (("rank", other) for other in others[:1])
        if kind.does in _SIGNALS and log.agent:
            yield "agent", leader
    if kind.does in _SIGNALS:
        yield "all", leader
    if kind.storage is None:
        yield "rank", leader
        if not _is_in_a_save(fault, log.points):
            yield from (("rank", other) for other in others[1:])


def _is_in_a_save(fault: Fault, points: Sequence[str]) -> bool:
    return fault.number <= len(points) and points[fault.number - 1].startswith(_SAVES)


def _same_moment(fault: Fault, rank: int, baseline: Attempt) -> int:
    """Return the failpoint of a rank at about the same time as one of rank 0, at which the fault can happen."""
    leader = min(baseline.ranks)
    if rank == leader or rank not in baseline.ranks:
        return fault.number
    first, own = (
        [
            number
            for number, name in enumerate(baseline.ranks[one].points, 1)
            if name.startswith(FAULTS[fault.kind].points)
        ]
        for one in (leader, rank)
    )
    return own[first.index(fault.number) * len(own) // len(first)] if own and fault.number in first else fault.number


def note_targets(cases: Sequence[Case], baseline: Attempt) -> list[str]:
    """Report how many faults each target has, and which have none."""
    faults = [fault for case in cases for fault in case.faults if fault.target]
    if not faults:
        return []
    wanted = [f"rank {rank}" for rank in sorted(baseline.ranks)]
    wanted += ["the agent"] * baseline.ranks[min(baseline.ranks)].agent + ["all processes"]
    found = Counter(_name(fault) for fault in faults)
    notes = [f"faults hit {', '.join(f'{name} ({found[name]})' for name in wanted if found[name])}"]
    if missed := [name for name in wanted if not found[name]]:
        notes.append(f"no fault hits {', '.join(missed)}: use kill, and more points")
    return notes


def note_sizes(cases: Sequence[Case], starts: Sequence[int]) -> list[str]:
    """Report the requested numbers of ranks that no case uses."""
    used = {launch.ranks for case in cases for launch in case.launches}
    missed = [str(ranks) for ranks in dict.fromkeys(starts) if ranks not in used]
    each = "a case has only one launch more than faults: use random, or mtbf and failures"
    return [f"no launch has {' or '.join(missed)} ranks: {each}"] if missed else []


def _name(fault: Fault) -> str:
    return {"rank": f"rank {fault.rank}", "agent": "the agent", "all": "all processes"}[fault.target]
