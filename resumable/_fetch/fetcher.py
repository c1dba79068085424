"""The fetcher protocol that a Loader uses, and `Changes`, which tracks what a user changes during a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from resumable._fetch.frameworks import HasSettings
from resumable._introspection import offers
from resumable._order.plan import ENDLESS, Schedule
from resumable._state import MOST_STARTS, Journal, Resize
from resumable.protocols import SupportsClose

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from resumable._content import Canary
    from resumable._fetch.frameworks import Inside
    from resumable._options import Options
    from resumable._order.cursor import Cursor
    from resumable._order.plan import History, Plan
    from resumable._order.world import World
    from resumable._state import Mark, SourceState, State
    from resumable.protocols import IndexedBackend, ReplayBackend, Traits
    from resumable.samplers.base import Continuation

__all__ = ["Changes", "Fetcher", "as_the_state_knows", "close_backend", "fingerprint_of"]


def close_backend(backend: Any) -> None:
    """Close anything that a backend keeps open between epochs."""
    if offers(backend, SupportsClose):
        backend.close()


class Fetcher(Protocol):
    """Opens a backend's stream at any mark, one epoch at a time."""

    @property
    def unit(self) -> str:
        """The unit of positions: "sample" or "element"."""
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
        """Attributes of the backend that are visible from outside the stream."""
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
        """Whether a mark is more than a cursor: it includes a state of the source, or a canary."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """Return what must be the same in the run that saved a state and the one that loads it."""
        ...

    def fingerprint_for(self, state: State) -> dict[str, Any]:
        """Return the fingerprint to compare with a state's. The state may be from a version with other defaults."""
        ...

    def check(self, state: State, plan: Plan | None) -> None:
        """Reject a state with a position or snapshot that this source cannot have.

        Raises:
            StateError: the state has one.
        """
        ...

    def continuation(self, state: State) -> Continuation | None:
        """Return what differs from the order of a state, if only samples after its position do."""
        ...

    def adopt(self, state: State, global_batch: int) -> Mark:
        """Apply the parts of a state that are not its position, and return its position in this run."""
        ...

    def plan(self, global_batch: int, ranks: int | None = None) -> Plan | None:
        """Return how the epochs are divided into batches, or None if the length of an epoch is unknown.

        Args:
            global_batch: samples per step over all ranks.
            ranks: number of ranks; None for the present one.
        """
        ...

    def finished(self, cursor: Cursor, global_batch: int) -> bool:
        """Return whether no batch of the cursor's epoch is left; False if only reading can tell."""
        ...

    def following(self, cursor: Cursor, global_batch: int) -> Cursor:
        """Return where the epoch after the cursor's starts."""
        ...

    def leave(self, mark: Mark, global_batch: int) -> SourceState | None:
        """Return the source's state at the start of the next epoch, if the loop leaves this one at a mark."""
        ...

    def world(self) -> World:
        """Return the ranks that share a global batch."""
        ...

    def open(self, mark: Mark, global_batch: int) -> Iterator[tuple[Any, Cursor]]:
        """Yield the rest of the mark's epoch: batches, each with the cursor after it."""
        ...

    def source_now(self, source: SourceState | None) -> SourceState | None:
        """Return the source state of a mark again. A user may have changed it while the source was there."""
        ...

    def begins_with(self, source: SourceState | None) -> SourceState | None:
        """Return the part of a source state with which each pass for evaluation starts."""
        ...

    def source_state(self, *, asked: bool = True) -> SourceState | None:
        """Return the source's own state after the last yielded batch, if it has one.

        Args:
            asked: it becomes part of a state now. Otherwise it is kept in case it is needed later.
        """
        ...

    def state_before(self, cursor: Cursor) -> tuple[SourceState | None, Canary | None]:
        """Return the source's own state before the last yielded batch, and its canary, without asking the source."""
        ...

    def past(self, mark: Mark) -> dict[str, Any] | None:
        """Return what was seen of the epoch before a mark, if the source is opened again in each epoch."""
        ...

    def canary(self) -> Canary | None:
        """Return the canary for the element at the position that `source_state` just returned, if it is compared."""
        ...


class Changes:
    """Tracks changes for the journal of a state.

    Args:
        fetcher: knows the plans; its backend may have settings.
    """

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._settings = fetcher.backend if offers(fetcher.backend, HasSettings) else None
        self._resizes: tuple[Resize, ...] = ()
        self._sought: Cursor | None = None

    def first_global_batch(self, now: int) -> int:
        """Return the samples per step with which the run started."""
        return self._resizes[0].was if self._resizes else now

    def history(self, here: Cursor, global_batch: int) -> History:
        """Return the plans of the run up to a position."""
        return Journal(self._resizes).history(here, self._plan, (global_batch, self._fetcher.world().size))

    def _plan(self, global_batch: int, ranks: int) -> Plan:
        return self._fetcher.plan(global_batch, ranks) or Schedule(ENDLESS, global_batch, "partial")

    def settings(self) -> Mapping[str, Any] | None:
        """Return the current settings, which the next epoch uses."""
        return None if self._settings is None else self._settings.settings()

    def in_force(self, mark: Mark) -> Mapping[str, Any] | None:
        """Return the settings that a mark's epoch started with, or starts with now."""
        return self.settings() if mark.in_force is None else mark.in_force

    def journal(self, mark: Mark) -> Journal:
        """Return the journal of the current position."""
        return Journal(self._resizes, mark.in_force, self.settings(), self._sought)

    def load(self, state: State, here: Cursor, global_batch: int) -> None:
        """Take over the changes of a state, and a different global batch or number of ranks from a position on."""
        self._resizes, self._sought = state.journal.resizes, state.journal.sought
        self._go(here, (state.global_batch, state.world_size), global_batch)
        if self._settings is not None and state.journal.settings is not None:
            self._settings.set_settings(state.journal.settings)

    def seek(self, here: Cursor, global_batch: int) -> None:
        """Note that the run went to a position. Its later steps no longer count: the run reads them again."""
        self._sought = here
        self._go(here, None, global_batch)

    def leave(self, start: Cursor, global_batch: int) -> None:
        """Note where an epoch starts if the one before it was left early, and its plan would have it elsewhere."""
        self._go(start, None, global_batch, starts=True)
        starts = [one for one in self._resizes if one.is_start]
        self._resizes = tuple(one for one in self._resizes if one not in starts[:-MOST_STARTS])

    def _go(self, here: Cursor, was: tuple[int, int] | None, global_batch: int, *, starts: bool = False) -> None:
        """Add a change, which replaces later ones and the one at its position.

        Args:
            here: the position.
            was: global batch and number of ranks before it; None for the present ones.
            global_batch: samples per step from there on.
            starts: an epoch starts there.
        """
        now, place = (global_batch, self._fetcher.world().size), (here.epoch, here.position)
        kept = [one for one in self._resizes if (one.epoch, one.position) < place]
        dropped = self._resizes[len(kept) :]
        before = dropped[0].before if dropped else was or now
        # A change at position 0 may be the only one that says where the epoch starts.
        starts = starts or (here.position == 0 < here.epoch and any(one[:2] == place for one in dropped))
        if starts or (before != now and self._plan(*before) != self._plan(*now)):
            kept.append(Resize(*place, before[0], now[0], (before[1], now[1])))
        self._resizes = tuple(kept)


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
    length = getattr(backend, "length", None) if hasattr(backend, "read") else None  # isinstance takes 20 µs
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
    """Return a fingerprint under the stream's second identity, if a state has that one.

    Args:
        own: the fingerprint.
        also: the second identity.
        state: of the same stream or not.
    """
    other = {f"backend.{name}": value for name, value in (also or {}).items()}
    if not other or any(state.fingerprint.get(name) != value for name, value in other.items()):
        return dict(own)
    kept = {name: value for name, value in own.items() if not name.startswith("backend.")}
    return {**kept, "backend.kind": own["backend.kind"], **other}
