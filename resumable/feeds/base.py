"""What a Loader asks of a feed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from resumable.cursor import Cursor
    from resumable.schedule import Schedule
    from resumable.state import Mark
    from resumable.world import World

__all__ = ["Feed", "remedies_of"]


class Feed(Protocol):
    """Opens a backend's stream at any mark, one epoch at a time."""

    def facts(self) -> dict[str, Any]:
        """Return what must be the same in the run that saved a state and the one that loads it."""
        ...

    def remedies(self) -> Mapping[str, str]:
        """Return what to do about a difference in a fact, by the fact's name; those that its backend knows."""
        ...

    def schedule(self, global_batch: int) -> Schedule | None:
        """Return the epoch's schedule, or None where nobody knows how long an epoch is."""
        ...

    def finished(self, cursor: Cursor, global_batch: int) -> bool:
        """Tell whether no batch of the cursor's epoch is left; False where nobody knows before trying."""
        ...

    def following(self, cursor: Cursor, global_batch: int) -> Cursor:
        """Return where the epoch after the cursor's begins."""
        ...

    def open(self, mark: Mark, global_batch: int) -> Iterator[tuple[Any, Cursor]]:
        """Yield the rest of the mark's epoch: batches, each with the cursor behind it."""
        ...

    def leave(self, mark: Mark, global_batch: int) -> dict[str, Any] | None:
        """Return the source's own snapshot of an epoch that the loop leaves at a mark, whatever is left of it."""
        ...

    def world(self) -> World:
        """Return the ranks that share a global batch."""
        ...

    def native(self, *, asked: bool = True) -> dict[str, Any] | None:
        """Return the source's own snapshot behind the batch that was yielded last, where it has one.

        Args:
            asked: it becomes part of a state; otherwise it is only kept for the case that it will.
        """
        ...


def remedies_of(backend: Any) -> dict[str, str]:
    """Return a backend's `remedies` under the names that the facts have: `backend.` stands before one without a dot."""
    said = getattr(backend, "remedies", {})
    return {name if "." in name else f"backend.{name}": remedy for name, remedy in said.items()}
