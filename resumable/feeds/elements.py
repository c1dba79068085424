"""The feed of snapshot and replay backends: sources that give elements in an order of their own.

In each round, every rank draws the elements of the whole global batch and keeps its share, so that ranks with the same
source get disjoint parts of one stream (with one element per rank: round-robin). Where a source divides itself over
the ranks already (`shard=False`), each rank draws only for itself, and the state belongs to that rank.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from resumable.backend import SnapshotBackend
from resumable.cursor import Cursor
from resumable.errors import ConfigurationError, StateMismatchError
from resumable.feeds.base import remedies_of
from resumable.feeds.draws import Draws
from resumable.schedule import Schedule, check_share, share
from resumable.state import Mark
from resumable.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from resumable.backend import ReplayBackend
    from resumable.options import Options
    from resumable.randomness import Randomness
    from resumable.schedule import Tail

__all__ = ["ElementFeed"]


@dataclass(slots=True)
class _Place:
    """The place behind the batch that was handed over last, in a source with a state of its own.

    Args:
        base: the last snapshot that was taken, or was given by a mark; as in `native`.
        taken: position at which that was.
        position: behind the element that was handed over last.
        ended: the source has no more in this epoch, as is known since.
        reached: the source itself stands at this place now, so that a new snapshot would be one of it.
        between: it is a place between two epochs, or before the first.
    """

    base: dict[str, Any] | None = None
    taken: int = 0
    position: int = 0
    ended: bool = False
    reached: bool = False
    between: bool = False


class ElementFeed:
    """Rounds of elements, each under the randomness of its position.

    Args:
        backend: gives the elements, and snapshots where it can. A backend with a true attribute `keyed` seeds the
            randomness of its elements itself; one with a true `needs_shard` wants to be told `shard` for several ranks;
            one with `snapshot_every` says at how many steps it is worth its cost to take a snapshot in advance. One
            with a true `eager` gives snapshots so cheaply that one is taken before each draw, so that a draw that fails
            loses nothing; one with a method `ended()` tells whether no element is left, so that none is drawn ahead.
        tail: "drop" or "partial".
        randomness: how often the global generators are seeded.
        options: seed, world, batch size, transform, collate, shard, and how often to take a snapshot.
    """

    def __init__(self, backend: ReplayBackend, tail: Tail, randomness: Randomness, options: Options) -> None:
        self._backend, self._tail, self._options = backend, tail, options
        self._randomness = randomness
        self._seeds = randomness != "off" and not getattr(backend, "keyed", False)
        self._has_state = isinstance(backend, SnapshotBackend)  # asked once, as that takes time
        self._global_batch = 1
        self._place = _Place(reached=True, between=True)
        self._standing: dict[str, Any] | None = (
            None  # the last snapshot between epochs: the source stands there by itself
        )
        self._live: Draws | None = None

    def facts(self) -> dict[str, Any]:
        """Return kind, identity, randomness and tail; and the rank, where each has a stream of its own."""
        facts = {
            "backend.kind": self._backend.kind,
            **{f"backend.{name}": value for name, value in self._backend.identity.items()},
            "randomness.mode": self._randomness,
            "randomness.seed": self._options.seed,
            "sampler.name": "source-order-v1",
            "tail": self._tail,
        }
        if self._options.shard is False:
            world = self._options.find_world()
            facts |= {"rank": world.rank, "world_size": world.size}
        return facts

    def remedies(self) -> Mapping[str, str]:
        """Return the backend's."""
        return remedies_of(self._backend)

    def schedule(self, global_batch: int) -> Schedule | None:
        """Return the epoch's schedule where the source knows its length; used for `len()` and `seek()` only."""
        length = getattr(self._backend, "length", None)
        return Schedule(length, global_batch, self._tail) if length else None

    def finished(self, cursor: Cursor, global_batch: int) -> bool:  # noqa: ARG002  # the protocol has it
        """Return False: only the source itself knows its end."""
        return False

    def following(self, cursor: Cursor, global_batch: int) -> Cursor:  # noqa: ARG002  # the protocol has it
        """Return the beginning of the next epoch."""
        return Cursor(cursor.epoch + 1)

    def world(self) -> World:
        """Return the world that shares a stream: all ranks, or only this one where each draws its own."""
        return World() if self._options.shard is False else self._options.find_world()

    def native(self, *, asked: bool = True) -> dict[str, Any] | None:
        """Return a snapshot and the elements to skip after it; None where the source is replayed.

        It looks one element ahead, as the state of a source behind its last element may already be that of its next
        pass, which only the source's end can tell apart. Called while an element is drawn (from a signal handler), it
        goes by the last snapshot.

        `snapshot` is the source's own state. Where an epoch was left in its middle, and no snapshot was taken since,
        there are `before` and `position` instead: the native of that epoch, and how far it was read.
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
        native = {**place.base, "skip": place.position - place.taken}
        if place.between and place.reached:
            self._standing = native
        return {**native, "ended": True} if place.ended else native

    def leave(self, mark: Mark, global_batch: int) -> dict[str, Any] | None:
        """Return what `native` does of an epoch that the loop leaves at a mark; at its end if no batch is left.

        Elements that make no whole batch (`tail="drop"`) may be left: they are read here, as otherwise a source that
        goes on where it stands would give nothing but them in its next pass.
        """
        if self._live is not None:
            return self._look(self._live, global_batch)
        if mark.native is None or "ended" in mark.native or mark.cursor.position == 0:
            return mark.native
        draws = self._live = self._draws(mark.cursor.epoch)
        try:
            self._start(draws, mark)
            self._place.reached = True
            return self._look(draws, global_batch)
        finally:
            self._place.reached, self._live = False, None
            draws.close()

    def _look(self, draws: Draws, global_batch: int) -> dict[str, Any] | None:
        """Look whether another batch is left, and return the native of this place, or of the end."""
        native, least = self.native(), global_batch if self._tail == "drop" else 1
        if native is None or "ended" in native or draws.has(self._place.position, least):
            return native
        self._place.ended = True
        return self.native()

    def open(self, mark: Mark, global_batch: int) -> Iterator[tuple[Any, Cursor]]:
        """Yield the rest of the mark's epoch: batches, each with the cursor behind it."""
        world, cursor, native = self.world(), mark.cursor, mark.native
        self._check(global_batch, world)
        self._global_batch = global_batch
        if native is not None and "ended" in native and cursor.position:
            self._place = _Place(_base_of(native), between=True)
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
            if place.reached and getattr(self._backend, "eager", False) and self._is_stale(place, asked=True):
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
        cursor, native, standing = mark.cursor, mark.native, self._standing
        self._standing = None
        skip = cursor.position if native is None else native["skip"]
        self._place = place = _Place(_base_of(native), cursor.position - skip, cursor.position)
        if native is None or native is standing:
            draws.begin(lambda: self._backend.open(cursor.epoch))
        elif "before" in native:
            self._leave_epoch_before(cursor, native)
            self._place = place
            draws.begin(lambda: self._backend.open(cursor.epoch))
        else:
            self._restore(draws, cursor, native)
        draws.skip(cursor.position - skip, skip)

    def _leave_epoch_before(self, cursor: Cursor, native: dict[str, Any]) -> None:
        """Go the way of a run that left the epoch before in its middle: to that place, and no further."""
        last, draws = Cursor(cursor.epoch - 1, native["position"]), self._draws(cursor.epoch - 1)
        if last.position or "before" in native["before"]:
            self._start(draws, Mark(last, native["before"]))
        else:
            draws.begin(lambda: self._restored(last.epoch, native["before"]))
        draws.close()

    def _restore(self, draws: Draws, cursor: Cursor, native: dict[str, Any]) -> None:
        """Bring the source back: into an epoch, or between two, where some know how to begin the later one."""
        epoch, between = cursor.epoch, cursor.position == native["skip"]
        if between:
            draws.begin_or(lambda: self._restored(epoch, native, "reopen"), lambda: self._backend.open(epoch))
        else:
            draws.begin(lambda: self._restored(epoch, native))

    def _restored(self, epoch: int, native: dict[str, Any], how: str = "restore") -> Iterator[Any]:
        if not isinstance(self._backend, SnapshotBackend):
            raise StateMismatchError(
                "the state has a snapshot of the source's own, and this source has none to put it into.\n"
                f"  in the checkpoint: {str(native)[:80]}\n  in this run:       a source that is replayed\n"
                "Give the source that the run was started with."
            )
        restore: Callable[[int, Any], Iterator[Any]] = getattr(self._backend, how, self._backend.restore)
        return restore(epoch, copy.deepcopy(native["snapshot"]))

    def _has_ended(self, draws: Draws, place: _Place) -> bool:
        tells: Callable[[], bool] | None = getattr(self._backend, "ended", None)
        if tells is None:
            return not draws.has(place.position)
        with draws.guard():
            return tells()

    def _is_stale(self, place: _Place, *, asked: bool) -> bool:
        by_itself = 1 if asked else getattr(self._backend, "snapshot_every", 1)
        every: int = self._options.snapshot_every or by_itself
        return place.position - place.taken >= every * self._global_batch

    def _take_snapshot(self, place: _Place) -> None:
        backend: Any = self._backend  # a SnapshotBackend, as its caller knows
        with (self._live or self._draws(0)).guard():
            snapshot = copy.deepcopy(backend.snapshot())
        place.base, place.taken = None if snapshot is None else {"snapshot": snapshot}, place.position

    def _draws(self, epoch: int) -> Draws:
        stream = (self._options.find_world().rank,) if self._options.shard is False else ()
        return Draws(self._options, epoch, stream, seeds=self._seeds)

    def _check(self, global_batch: int, world: World) -> None:
        if world.size > 1 and self._options.shard is None and getattr(self._backend, "needs_shard", False):
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


def _base_of(native: dict[str, Any] | None) -> dict[str, Any] | None:
    return native and {name: value for name, value in native.items() if name not in {"skip", "ended"}}
