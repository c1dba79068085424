"""Sources that deal their elements to the ranks by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable._order.plan import share
from resumable.protocols import ELSEWHERE

if TYPE_CHECKING:
    from resumable._order.world import World
    from resumable.protocols import Capabilities

__all__ = ["share_of"]


def share_of(drawn: list[Any], world: World, can: Capabilities) -> tuple[int, int]:
    """Return which of the elements of a step are this rank's."""
    if not can.dealt:
        return share(0, len(drawn), world)
    own = next(place for place, element in enumerate(drawn) if element is not ELSEWHERE)
    return own, own + 1
