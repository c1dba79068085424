"""What the ranks tell each other while `torch.distributed.checkpoint` saves or loads: their states, and if they agree.

All ranks of the call's group are in it, so they may wait for each other, as DCP itself does next. A rank that fails
says so instead of its state, so that no other one waits for it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable._dcp.fields import SEEN, differing, fields_of, named, seen_of, told
from resumable._dcp.leaf import pack, unpack
from resumable._parts import digest_of
from resumable._ranks.store import is_initialized
from resumable.errors import StateMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from resumable._dcp.caller import Call
    from resumable._order.world import World

__all__ = ["accepted_by_all", "gathered"]


_LONGEST = 2000  # characters of an error, told to other ranks


class _Report(NamedTuple):
    """What a rank says first, in about 100 bytes.

    `seen` are digests of `SEEN`; None where the rank has not looked. `own` is a digest of what may differ from rank to
    rank; empty where a state has no such part.
    """

    rank: int = 0
    size: int = 1
    fields: str = ""
    own: str = ""
    seen: tuple[str | None, ...] = (None,) * len(SEEN)
    failed: str = ""


def gathered(call: Call, find_world: Callable[[], World], take: Callable[[], dict[str, Any]]) -> bytes:
    """Return a leaf with the states of all ranks, the same on all of them.

    Args:
        call: of DCP's.
        find_world: finds out which part of the data this rank reads.
        take: takes the state of this rank.

    Raises:
        StateMismatchError: the ranks differ in what has to be the same, or a rank could not take its state; on all
            ranks, before anything is written.
    """
    taken: dict[str, Any] = {}

    def report() -> _Report:
        taken.update(take())
        world = find_world()
        return _Report(world.rank, world.size, named(fields_of(taken)), _own(taken), seen_of(taken))

    reports = _reports(call, report, taken, "Nothing was written.")
    if _is_alone(call) or (len({one.own for one in reports}) == 1 and taken.get("rank") is None):
        return pack([taken])
    return pack(_by_rank(reports, _all(call, taken)))


def _own(state: Mapping[str, Any]) -> str:
    own = [state[name] for name in ("rank", "source_state") if state.get(name) is not None]
    return digest_of([*own, state["cursor"]]) if own else ""


def _by_rank(reports: Sequence[_Report], states: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one state of each rank of the data; ranks that read the same data must have the same one.

    Raises:
        StateMismatchError: they have not, or some did not take part.
    """
    found: dict[int, int] = {}
    for number, one in enumerate(reports):
        first = found.setdefault(one.rank, number)
        if reports[first].own != one.own:
            raise StateMismatchError(
                f"{told([first, number])} read the same part of the data (part {one.rank} of {one.size}), and their "
                "sources' own states differ.\nOne of them would go on elsewhere. Nothing was written. Give both the "
                "same source."
            )
    if missing := [rank for rank in range(reports[0].size) if rank not in found]:
        raise StateMismatchError(
            f"each of {reports[0].size} ranks has a stream or state of its own, and {told(missing)} took no part in "
            "the save.\nTheir places would be lost. Nothing was written. Call dcp.save on all ranks, with a process "
            "group of all of them."
        )
    return [states[found[rank]] for rank in range(reports[0].size)]


def accepted_by_all(
    call: Call | None,
    leaf: bytes,
    find_world: Callable[[], World],
    accept: Callable[[Mapping[str, Any]], Callable[[], None]],
) -> Callable[[], None]:
    """Return what goes to the place of this rank in a leaf, once all ranks accept theirs.

    Args:
        call: of DCP's; None where other code gives the leaf, which may do so on one rank alone.
        leaf: what was saved.
        find_world: finds out which part of the data this rank reads.
        accept: checks a state, and returns what goes there.

    Raises:
        StateFormatError: a leaf is damaged.
        StateMismatchError: a leaf has the streams of another number of ranks, or the ranks were given different
            checkpoints, or a rank refused its state; then on all ranks, and none of them has moved.
    """
    own: dict[str, Any] = {}
    go: list[Callable[[], None]] = []

    def report() -> _Report:
        world = find_world()
        own.update(_of_rank(unpack(leaf), world))
        go.append(accept(own))
        return _Report(world.rank, world.size, named(fields_of(own)))

    if call is None:
        report()
    else:
        _reports(call, report, own, "Nothing was loaded.")
    return go[0]


def _of_rank(states: Sequence[Mapping[str, Any]], world: World) -> Mapping[str, Any]:
    if len(states) == 1:
        return states[0]
    if len(states) != world.size:
        raise StateMismatchError(
            "the number of ranks differs from the checkpoint's: each has a stream or state of its own, which cannot be "
            f"divided again.\n  in the checkpoint: {len(states)}\n  in this run:       {world.size}\n"
            f"Restart with {len(states)} ranks. Sources that are read by index, and streams that all ranks share, can "
            "go on with any number."
        )
    return states[world.rank]


# ------------------------------------------------------------------ telling each other


def _reports(call: Call, report: Callable[[], _Report], state: Mapping[str, Any], outcome: str) -> list[_Report]:
    """Return what all ranks report, if none failed and they agree.

    Raises:
        StateMismatchError: on all ranks.
    """
    failed: Exception | None = None
    try:
        own = report()
    except Exception as error:  # noqa: BLE001  # the other ranks wait; it is raised below
        failed, own = error, _Report(failed=f"{type(error).__name__}: {error}"[:_LONGEST])
    reports = _all(call, own)
    if failed is not None:
        raise failed
    if which := [rank for rank, one in enumerate(reports) if one.failed]:
        raise StateMismatchError(
            f"{told(which)} failed, so no rank went on. {outcome}\nOf rank {which[0]}: {reports[which[0]].failed}"
        )
    if len({one.fields for one in reports}) > 1:
        raise differing(_all(call, fields_of(state)), outcome)
    for number, name in enumerate(SEEN):
        if len({one.seen[number] for one in reports} - {None}) > 1:
            raise differing(_all(call, {name: state[name]}), outcome)
    return reports


def _all(call: Call, own: Any) -> list[Any]:
    """Return what each rank of a call has."""
    if _is_alone(call):
        return [own]
    distributed = sys.modules["torch.distributed"]
    everyone: list[Any] = [None] * distributed.get_world_size(call.group)
    distributed.all_gather_object(everyone, own, group=call.group)
    return everyone


def _is_alone(call: Call) -> bool:
    """Return whether this process saves or loads by itself, what is its own."""
    return call.alone or not is_initialized()
