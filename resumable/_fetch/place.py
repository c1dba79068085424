"""The place in a source that gives elements in an order of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resumable._content import Canary
    from resumable._state import SourceState

__all__ = ["Place"]


@dataclass(slots=True)
class Place:
    """The place after the batch that was delivered last, in a source with a state of its own.

    Args:
        base: the last snapshot that was taken, or the state that was given by a mark.
        taken: position at which that was.
        position: after the element that was delivered last.
        ended: the source has no more in this epoch, as is known since.
        reached: the source itself stands at this place now, so that a new snapshot would be one of it.
        between: it is a place between two epochs, or before the first.
        last: the canary of the element before it, with its position.
        earlier: likewise, of the place before the batch that was delivered last.
    """

    base: SourceState | None = None
    taken: int = 0
    position: int = 0
    ended: bool = False
    reached: bool = False
    between: bool = False
    last: tuple[int, Canary] | None = None
    earlier: tuple[int, Canary] | None = None
