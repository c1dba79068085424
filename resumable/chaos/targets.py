"""What a fault of a run of several ranks hits: one of them, the agent that started them, or all processes."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from resumable.chaos.plan import FAULTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resumable.chaos.plan import Case, Fault
    from resumable.chaos.recorder.attempts import Attempt

__all__ = ["aim", "note_sizes", "note_targets"]

_SIGNALS = {"kill", "term"}  # what can be done to another process than the one that comes by the point
_SAVES = ("store.", "torch.save.", "lightning.save")  # points in a save


def aim(cases: Sequence[Case], baseline: Attempt) -> list[Case]:
    """Give the faults of a run of several ranks their targets in turn, so that each is hit, by as many cases as before.

    The moments stay, by the points of rank 0. A fault in a save hits rank 0, which saves, or all; a power cut hits all.

    Args:
        cases: of which each fault is at a point of rank 0.
        baseline: what the ranks do without faults.
    """
    if len(baseline.ranks) < 2:  # noqa: PLR2004  # several
        return list(cases)
    turns: dict[tuple[str, int], count[int]] = defaultdict(count)

    def turn(fault: Fault | None, ranks: int) -> Fault | None:
        if fault is None or fault.after is not None or FAULTS[fault.kind].in_worker:
            return fault
        known = baseline.ranks if ranks == cases[0].legs[0].ranks else range(ranks)
        places = list(_targets(fault, sorted(known), baseline))
        target, rank = places[next(turns[fault.kind, len(places)]) % len(places)]
        return replace(fault, target=target, rank=rank, number=_same_moment(fault, rank, baseline))

    return [
        replace(case, legs=tuple(replace(leg, fault=turn(leg.fault, leg.ranks)) for leg in case.legs)) for case in cases
    ]


def _targets(fault: Fault, ranks: Sequence[int], baseline: Attempt) -> Iterator[tuple[str, int]]:
    """Yield what a fault may hit, with the rank whose points are counted; the rank after the first one comes first."""
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
    """Return the point of a rank at about the moment of one of rank 0, among those at which the fault can happen."""
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
    """Say how many faults each target has, and which has none."""
    faults = [leg.fault for case in cases for leg in case.legs if leg.fault and leg.fault.target]
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
    """Say which of the numbers of ranks that were asked for no case comes to."""
    used = {leg.ranks for case in cases for leg in case.legs}
    missed = [str(ranks) for ranks in dict.fromkeys(starts) if ranks not in used]
    each = "a case has a start more than faults: use random, or mtbf and failures"
    return [f"no start has {' or '.join(missed)} ranks, as {each}"] if missed else []


def _name(fault: Fault) -> str:
    return {"rank": f"rank {fault.rank}", "agent": "the agent", "all": "all processes"}[fault.target]
