"""What a Loader asks of a fetcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from resumable.protocols import SupportsClose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable._fetch.frameworks import Inside
    from resumable._order.cursor import Cursor
    from resumable._order.plan import Plan
    from resumable._order.world import World
    from resumable._state import Canary, Mark, SourceState, State
    from resumable.protocols import Traits

__all__ = ["Fetcher", "close_backend"]


def close_backend(backend: Any) -> None:
    """End what a backend keeps open between epochs."""
    if isinstance(backend, SupportsClose):
        backend.close()


class Fetcher(Protocol):
    """Opens a backend's stream at any mark, one epoch at a time."""

    @property
    def unit(self) -> str:
        """What a position counts: "sample" or "element"."""
        ...

    @property
    def backend(self) -> Any:
        """The source of the batches."""
        ...

    @property
    def traits(self) -> Traits:
        """Plain facts about the backend."""
        ...

    @property
    def inside(self) -> Inside:
        """What is seen of the backend from outside of the stream."""
        ...

    @property
    def interleaved(self) -> bool:
        """Whether a rank takes every W-th sample of a global batch, instead of one contiguous part."""
        ...

    def replayed(self, snapshot: Any) -> int:
        """Return how many elements the source reads again when a snapshot is restored."""
        ...

    @property
    def remembers(self) -> bool:
        """Whether a mark is more than a cursor: it has a state of the source, or a canary."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """Return what must be the same in the run that saved a state and the one that loads it."""
        ...

    def fingerprint_for(self, state: State) -> dict[str, Any]:
        """Return the fingerprint to compare with a state's, which may be of an earlier version with other defaults."""
        ...

    def check(self, state: State, global_batch: int) -> None:
        """Refuse a state whose place or snapshot this source cannot have.

        Raises:
            StateError: it is one.
        """
        ...

    def adopt(self, state: State, global_batch: int) -> Mark:
        """Take over what of a state is not its place, and return its place in this run."""
        ...

    def plan(self, global_batch: int) -> Plan | None:
        """Return how the epochs are cut into batches, or None where the length of an epoch is unknown."""
        ...

    def finished(self, cursor: Cursor, global_batch: int) -> bool:
        """Return whether no batch of the cursor's epoch is left; False where only trying shows it."""
        ...

    def following(self, cursor: Cursor, global_batch: int) -> Cursor:
        """Return where the epoch after the cursor's begins."""
        ...

    def leave(self, mark: Mark, global_batch: int) -> SourceState | None:
        """Return the source's state at the beginning of the next epoch, as the loop leaves this one at a mark."""
        ...

    def world(self) -> World:
        """Return the ranks that share a global batch."""
        ...

    def open(self, mark: Mark, global_batch: int) -> Iterator[tuple[Any, Cursor]]:
        """Yield the rest of the mark's epoch: batches, each with the cursor after it."""
        ...

    def source_now(self, source: SourceState | None) -> SourceState | None:
        """Return the source state of a mark again, where a user may have changed it while the source stood there."""
        ...

    def begins_with(self, source: SourceState | None) -> SourceState | None:
        """Return what of a source state each pass of an evaluation begins with."""
        ...

    def source_state(self, *, asked: bool = True) -> SourceState | None:
        """Return the source's own state after the batch that was yielded last, where it has one.

        Args:
            asked: it becomes part of a state; otherwise it is only kept for the case that it will.
        """
        ...

    def state_before(self, cursor: Cursor) -> tuple[SourceState | None, Canary | None]:
        """Return the source's own state before the batch that was yielded last, and its canary, without asking it."""
        ...

    def canary(self) -> Canary | None:
        """Return what tells the element at the place for which `source_state` was just asked, where it is compared."""
        ...
