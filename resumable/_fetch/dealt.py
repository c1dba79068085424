"""Sources that deal their elements to the ranks by themselves, and that states may know by another identity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable._order.plan import share
from resumable.protocols import ELSEWHERE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resumable._order.world import World
    from resumable.protocols import Capabilities

__all__ = ["known_by", "share_of"]


def share_of(drawn: list[Any], world: World, can: Capabilities) -> tuple[int, int]:
    """Return which of the elements of a step are this rank's."""
    if not can.dealt:
        return share(0, len(drawn), world)
    own = next(place for place, element in enumerate(drawn) if element is not ELSEWHERE)
    return own, own + 1


def known_by(stored: Mapping[str, Any], own: dict[str, Any], can: Capabilities) -> dict[str, Any]:
    """Return a fingerprint, with the other identity of its source where a state has that."""
    if can.also is None:
        return own
    known = {f"backend.{name}": value for name, value in can.also.items()}
    if any(stored.get(name) != value for name, value in known.items()):
        return own
    identity = {"backend.kind": own["backend.kind"], **known}
    return {name: value for name, value in own.items() if not name.startswith("backend.")} | identity
