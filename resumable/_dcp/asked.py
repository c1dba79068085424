"""What a Loader does when it is asked for a state, or given one: all that is imported before DCP asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable._dcp.caller import find_call
from resumable._dcp.leaf import LEAF, PLACEHOLDER, is_leaf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

    from resumable._order.world import World

__all__ = ["accepted", "as_asked"]


def as_asked(
    frame: FrameType | None, find_world: Callable[[], World], take: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return a state, or what DCP makes a leaf of, where it is DCP that asks.

    Args:
        frame: what called `state_dict()`.
        find_world: finds out which part of the data this rank reads.
        take: takes the state of this rank.

    Raises:
        StateMismatchError: the ranks differ in what has to be the same; on all of them.
    """
    call = find_call(frame)
    if call is None:
        return take()
    if call.loads:
        return {LEAF: PLACEHOLDER}
    from resumable._dcp.exchange import gathered  # noqa: PLC0415  # imports what only DCP needs

    return {LEAF: gathered(call, find_world, take)}


def accepted(
    frame: FrameType | None,
    values: Mapping[str, Any],
    find_world: Callable[[], World],
    accept: Callable[[Mapping[str, Any]], Callable[[], None]],
) -> Callable[[], None]:
    """Return what goes to the place that a state or a leaf says; of a leaf that DCP loads, once all ranks accept it.

    Args:
        frame: what called `load_state_dict()`.
        values: the state or the leaf.
        find_world: finds out which part of the data this rank reads.
        accept: checks a state, and returns what goes there.

    Raises:
        StateError: it cannot be gone to; of a leaf that DCP loads, on all ranks, and none of them has moved.
    """
    if not is_leaf(values):
        return accept(values)
    from resumable._dcp.exchange import accepted_by_all  # noqa: PLC0415  # as above

    return accepted_by_all(find_call(frame), values[LEAF], find_world, accept)
