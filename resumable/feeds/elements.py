"""The feed of snapshot and replay backends: sources that give elements in an order of their own.

In each round, every rank draws the elements of the whole global batch and keeps its share, so that ranks with the same
source get disjoint parts of one stream (with one element per rank: round-robin). Where a source divides itself over
the ranks already (`shard=False`), each rank draws only for itself, and the state belongs to that rank.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from resumable._state import AtPlace, LeftEarly, Mark
from resumable.cursor import Cursor
from resumable.errors import ConfigurationError, StateMismatchError
from resumable.feeds.draws import Draws
from resumable.protocols import SnapshotBackend, capabilities_of
from resumable.schedule import Schedule, check_share, share
from resumable.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable._state import SourceState
    from resumable.options import Options
    from resumable.protocols import ReplayBackend
    from resumable.randomness import Randomness
    from resumable.schedule import Tail

__all__ = ["ElementFeed"]


@dataclass(slots=True)
class _Place:
    """The place after the batch that was delivered last, in a source with a state of its own.

    Args:
        base: the last snapshot that was taken, or the state that was given by a mark.
        taken: position at which that was.
        position: after the element that was delivered last.
        ended: the source has no more in this epoch, as is known since.
        reached: the source itself stands at this place now, so that a new snapshot would be one of it.
        between: it is a place between two epochs, or before the first.
    """

    base: SourceState | None = None
    taken: int = 0
    position: int = 0
    ended: bool = False
    reached: bool = False
    between: bool = False


class ElementFeed:
    """Rounds of elements, each under the randomness of its position.

    Args:
        backend: gives the elements, and snapshots where it can.
        tail: "drop" or "partial".
        randomness: how often the global generators are seeded.
        options: seed, world, batch size, transform, collate, shard, and how often to take a snapshot.
    """

    unit = "element"

    def __init__(self, backend: ReplayBackend, tail: Tail, randomness: Randomness, options: Options) -> None:
        self.backend, self._tail, self._options = backend, tail, options
        self._randomness = randomness
        self.can = capabilities_of(backend)
        self._seeds = randomness != "off" and not self.can.keyed
        self._has_state = isinstance(backend, SnapshotBackend)  # asked once, as that takes time
        self._global_batch = 1
        self._place = _Place(reached=True, between=True)
        self._standing: SourceState | None = None  # the last state between epochs: the source stands there by itself
        self._live: Draws | None = None

    def facts(self) -> dict[str, Any]:
        """Return kind, identity, randomness and tail; and the rank, where each has a stream of its own."""
        facts = {
            "backend.kind": self.backend.kind,
            **{f"backend.{name}": value for name, value in self.backend.identity.items()},
            "randomness.mode": self._randomness,
            "randomness.seed": self._options.seed,
            "sampler.name": "source-order-v1",
            "tail": self._tail,
        }
        if self._options.shard is False:
            world = self._options.find_world()
            facts |= {"rank": world.rank, "world_size": world.size}
        return facts

    def schedule(self, global_batch: int) -> Schedule | None:
        """Return the epoch's schedule where the source knows its length; what ends an epoch is the source."""
        length = self.can.length
        return Schedule(length, global_batch, self._tail) if length else None

    def finished(self, cursor: Cursor, global_batch: int) -> bool:
        """Tell whether no batch of the cursor's epoch is left, as far as the source's length tells."""
        schedule = self.schedule(global_batch)
        return schedule is not None and schedule.finished(cursor)

    def following(self, cursor: Cursor, global_batch: int) -> Cursor:  # noqa: ARG002  # the protocol has it
        """Return the beginning of the next epoch."""
        return Cursor(cursor.epoch + 1)

    def world(self) -> World:
        """Return the world that shares a stream: all ranks, or only this one where each draws its own."""
        return World() if self._options.shard is False else self._options.find_world()

    def source_state(self, *, asked: bool = True) -> SourceState | None:
        """Return the source's state after the batch that was yielded last; None where it is replayed.

        It looks one element ahead, as the state of a source after its last element may already be that of its next
        pass, which only the source's end can tell apart. Called while an element is drawn (from a signal handler), it
        goes by the last snapshot.
        """
        if not self._has_state:
            return None
        place = self._place
        if place.reached and (place.base is None or self._is_stale(place, asked=asked) or place.ended):
            self._take_snapshot(place)
        if place.reached and not place.ended and self._live is not None and place.base is not None:
            place.ended = self._has_ended(self._live, place)
            if place.ended:
                self._take_snapshot(place)
        if place.base is None:
            return None
        state = replace(place.base, skip=place.position - place.taken, ended=place.ended)
        if place.between and place.reached:
            self._standing = state
        return state

    def leave(self, mark: Mark, global_batch: int) -> SourceState | None:
        """Return the source's state at the beginning of the next epoch, as the loop leaves this one at a mark.

        Elements that make no whole batch (`tail="drop"`) may be left. They are read here, as otherwise a source that
        goes on where it stands would give nothing but them in its next pass.
        """
        cursor, state = mark.cursor, mark.source
        if self._live is not None:
            state = self._look(self._live, global_batch)
        elif state is not None and not state.ended and cursor.position:
            state = self._look_again(mark, global_batch)
        if state is None or state.ended or cursor.position == 0:
            return state
        return LeftEarly(state, cursor.epoch, cursor.position)

    def _look_again(self, mark: Mark, global_batch: int) -> SourceState | None:
        """Go to a mark, and look there."""
        draws = self._live = self._draws(mark.cursor.epoch)
        try:
            self._start(draws, mark)
            self._place.reached = True
            return self._look(draws, global_batch)
        finally:
            self._place.reached, self._live = False, None
            draws.close()

    def _look(self, draws: Draws, global_batch: int) -> SourceState | None:
        """Look whether another batch is left, and return the state of this place, or of the end."""
        place, least = self._place, global_batch if self._tail == "drop" else 1
        state = self.source_state()
        if state is None or state.ended or draws.has(place.position, least):
            return state
        place.ended = True
        return self.source_state()

    def open(self, mark: Mark, global_batch: int) -> Iterator[tuple[Any, Cursor]]:
        """Yield the rest of the mark's epoch: batches, each with the cursor after it."""
        world, cursor, state = self.world(), mark.cursor, mark.source
        self._check(global_batch, world)
        self._global_batch = global_batch
        if state is not None and state.ended and cursor.position:
            self._place = _Place(replace(state, skip=0, ended=False), between=True)
            return
        draws = self._live = self._draws(cursor.epoch)
        try:
            self._start(draws, mark)
            yield from self._rounds(draws, cursor, world)
        finally:
            self._place.reached, self._live = False, None
            draws.close()
        self._place = _Place(reached=True, between=True)

    def _rounds(self, draws: Draws, cursor: Cursor, world: World) -> Iterator[tuple[Any, Cursor]]:
        place, size = self._place, self._global_batch
        while not place.ended:
            if place.reached and self.can.eager and self._is_stale(place, asked=True):
                self._take_snapshot(place)
            place.reached = False
            drawn = draws.take(cursor.position, size)
            if not drawn or (len(drawn) < size and self._tail == "drop"):
                return
            start, stop = share(0, len(drawn), world)
            batch = draws.assemble(drawn[start:stop], cursor.position + start)
            cursor = Cursor(cursor.epoch, cursor.position + len(drawn), cursor.step + 1)
            place.position, place.ended, place.reached = cursor.position, len(drawn) < size, True
            yield batch, cursor

    def _start(self, draws: Draws, mark: Mark) -> None:
        """Bring the source to a mark: by itself, by its own snapshot, or from the epoch's beginning."""
        cursor, state, standing = mark.cursor, mark.source, self._standing
        self._standing = None
        skip = cursor.position if state is None else state.skip
        base = None if state is None else replace(state, skip=0, ended=False)
        self._place = place = _Place(base, cursor.position - skip, cursor.position)
        if state is None or state is standing:
            draws.begin(lambda: self.backend.open(cursor.epoch))
        elif isinstance(state, LeftEarly):
            self._leave_again(state)
            self._place = place
            draws.begin(lambda: self.backend.open(cursor.epoch))
        else:
            self._restore(draws, cursor, state)
        draws.skip(cursor.position - skip, skip)

    def _leave_again(self, state: LeftEarly) -> None:
        """Go the way of a run that left an epoch in its middle: to that place, and no further."""
        draws = self._draws(state.epoch)
        self._start(draws, Mark(Cursor(state.epoch, state.position), state.before))
        draws.close()

    def _restore(self, draws: Draws, cursor: Cursor, state: AtPlace) -> None:
        """Bring the source back: into an epoch, or between two, where some know how to begin the later one."""
        epoch, backend = cursor.epoch, self.backend
        if not isinstance(backend, SnapshotBackend):
            raise StateMismatchError(
                "the state has a snapshot of the source's own, and this source has none to put it into.\n"
                f"  in the checkpoint: {str(state.snapshot)[:80]}\n  in this run:       a source that is replayed\n"
                "Give the source that the run was started with."
            )
        snapshot = copy.deepcopy(state.snapshot)
        if cursor.position == state.skip:
            again = self.can.reopen or backend.restore
            draws.begin_or(lambda: again(epoch, snapshot), lambda: backend.open(epoch))
        else:
            draws.begin(lambda: backend.restore(epoch, snapshot))

    def _has_ended(self, draws: Draws, place: _Place) -> bool:
        tells = self.can.ended
        if tells is None:
            return not draws.has(place.position)
        with draws.guard():
            return tells()

    def _is_stale(self, place: _Place, *, asked: bool) -> bool:
        """Tell whether a new snapshot is due; none can be taken where the source is ahead of the place."""
        if self._live is not None and self._live.is_ahead:
            return False
        every = self._options.snapshot_every or (1 if asked else self.can.snapshot_every)
        if isinstance(place.base, LeftEarly):  # so that such states never have one another inside
            return place.position > place.taken
        return place.position - place.taken >= every * self._global_batch

    def _take_snapshot(self, place: _Place) -> None:
        backend: Any = self.backend  # a SnapshotBackend, as its caller knows
        with (self._live or self._draws(0)).guard():
            snapshot = copy.deepcopy(backend.snapshot())
        place.base, place.taken = None if snapshot is None else AtPlace(snapshot), place.position

    def _draws(self, epoch: int) -> Draws:
        stream = (self._options.find_world().rank,) if self._options.shard is False else ()
        return Draws(self._options, epoch, stream, seeds=self._seeds)

    def _check(self, global_batch: int, world: World) -> None:
        if world.size > 1 and self._options.shard is None and self.can.needs_shard:
            raise ConfigurationError(
                f"with {world.size} ranks, nobody can tell whether this source gives each rank the whole stream or its "
                "own part.\nBatches would be lost or repeated by a wrong guess. Give wrap(..., shard=True) if every "
                "rank's source gives the same and the ranks are to divide it, or shard=False if the source or its "
                "sampler looks at the rank itself."
            )
        check_share(global_batch, world, uneven=self._options.uneven)
        if self._tail == "partial" and world.size > 1:
            raise ConfigurationError(
                f'with tail="partial", {world.size} ranks could end with different numbers of batches: nobody knows '
                'the length of this source before its end.\nThe ranks would wait for each other. Use tail="drop".'
            )
