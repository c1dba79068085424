"""What a Loader asks of a fetcher, and what it keeps of the changes that a user makes in the middle of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from resumable._fetch.frameworks import HasSettings
from resumable._introspection import offers
from resumable._state import Journal, Resize
from resumable.protocols import SupportsClose

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from resumable._content import Canary
    from resumable._fetch.frameworks import Inside
    from resumable._options import Options
    from resumable._order.cursor import Cursor
    from resumable._order.plan import Plan
    from resumable._order.world import World
    from resumable._state import Mark, SourceState, State
    from resumable.protocols import IndexedBackend, ReplayBackend, Traits

__all__ = ["Changes", "Fetcher", "as_the_state_knows", "close_backend", "fingerprint_of"]


def close_backend(backend: Any) -> None:
    """End what a backend keeps open between epochs."""
    if offers(backend, SupportsClose):
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
        """Properties of the backend."""
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

    def check(self, state: State, plan: Plan | None) -> None:
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


class Changes:
    """Knows what was changed, for the journal of a state.

    Args:
        backend: may have settings.
    """

    def __init__(self, backend: Any) -> None:
        self._settings = backend if offers(backend, HasSettings) else None
        self._resizes: tuple[Resize, ...] = ()

    def first_global_batch(self, now: int) -> int:
        """Return the samples per step with which the run began."""
        return self._resizes[0].was if self._resizes else now

    def settings(self) -> Mapping[str, Any] | None:
        """Return the settings that are set now, for the next epoch that begins."""
        return None if self._settings is None else self._settings.settings()

    def in_force(self, mark: Mark) -> Mapping[str, Any] | None:
        """Return the settings with which a mark's epoch began, or begins now."""
        return self.settings() if mark.in_force is None else mark.in_force

    def journal(self, mark: Mark) -> Journal:
        """Return the journal of the current position."""
        return Journal(self._resizes, mark.in_force, self.settings())

    def load(self, state: State, global_batch: int) -> None:
        """Take over the changes of a state, and another global batch from its place on."""
        self._resizes, cursor = state.journal.resizes, state.mark.cursor
        if global_batch != state.global_batch:
            self._resizes += (Resize(cursor.epoch, cursor.position, state.global_batch, global_batch),)
        if self._settings is not None and state.journal.settings is not None:
            self._settings.set_settings(state.journal.settings)


def fingerprint_of(
    backend: IndexedBackend | ReplayBackend, options: Options, mode: str, sampler: Mapping[str, Any], tail: str
) -> dict[str, Any]:
    """Return kind, identity, randomness, name, sampler and tail.

    Args:
        backend: has a kind and an identity, and a length if its samples have indices.
        options: seed and name.
        mode: of the randomness.
        sampler: its spec.
        tail: tail policy.
    """
    length = getattr(backend, "length", None) if hasattr(backend, "read") else None  # isinstance takes 20 microseconds
    return {
        "backend.kind": backend.kind,
        **{f"backend.{name}": value for name, value in backend.identity.items()},
        **({"backend.length": length} if length is not None else {}),
        "randomness.mode": mode,
        "randomness.seed": options.seed or 0,
        **({"name": options.name} if options.name else {}),
        **{f"sampler.{name}": value for name, value in sampler.items()},
        "tail": tail,
    }


def as_the_state_knows(own: Mapping[str, Any], also: Mapping[str, Any] | None, state: State) -> dict[str, Any]:
    """Return a fingerprint under the identity by which a state knows the stream, if that is the other one.

    Args:
        own: the fingerprint.
        also: the other identity.
        state: of the same stream or not.
    """
    other = {f"backend.{name}": value for name, value in (also or {}).items()}
    if not other or any(state.fingerprint.get(name) != value for name, value in other.items()):
        return dict(own)
    kept = {name: value for name, value in own.items() if not name.startswith("backend.")}
    return {**kept, "backend.kind": own["backend.kind"], **other}
