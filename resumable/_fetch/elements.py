"""The fetcher of snapshot and replay backends: sources that give elements in an order of their own.

In each round, every rank draws the elements of the whole global batch and keeps its share, so that ranks with the same
source get disjoint parts of one stream (with one element per rank: round-robin). Where a source divides itself over
the ranks already (`shard=False`), each rank draws only for itself, and the state belongs to that rank.
"""

from __future__ import annotations

import copy
import logging
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from resumable._fetch.agreed_ends import find_end, left_early
from resumable._fetch.canaries import (
    differs_ahead,
    gone_elsewhere,
    read_otherwise,
    skip_and_compare,
    skipped_elsewhere,
)
from resumable._fetch.dealing import Dealer
from resumable._fetch.divided import check_divided
from resumable._fetch.draws import Draws, too_few
from resumable._fetch.fingerprints import as_the_state_knows, fingerprint_of
from resumable._fetch.place import Place
from resumable._fetch.restoring import given_back, without_state
from resumable._order.cursor import Cursor
from resumable._order.plan import Schedule
from resumable._order.world import World
from resumable._state import AtPlace, Canary, LeftEarly, Mark
from resumable.errors import StateMismatchError, StateMismatchWarning
from resumable.protocols import SnapshotBackend, capabilities_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable._fetch.agreed_ends import AgreedEnd
    from resumable._options import Options
    from resumable._order.plan import Plan, Tail
    from resumable._randomness.keys import Randomness
    from resumable._state import SourceState, State
    from resumable.protocols import ReplayBackend

__all__ = ["ElementFetcher"]


class ElementFetcher:
    """Rounds of elements, each under the randomness of its position.

    Args:
        backend: gives the elements, and snapshots where it can.
        tail: "drop" or "partial".
        randomness: how often the global generators are seeded.
        options: seed, world, batch size, transform, collate, shard, and how often to take a snapshot.
    """

    unit = "element"
    remembers = True

    def __init__(self, backend: ReplayBackend, tail: Tail, randomness: Randomness, options: Options) -> None:
        self.backend, self._tail, self._options = backend, tail, options
        self._randomness = randomness
        self.can = capabilities_of(backend)
        self._seeds = randomness != "off" and not self.can.keyed
        self._replays = options.resume == "replay"
        self._has_state = isinstance(backend, SnapshotBackend) and not self._replays  # asked once, as that takes time
        self._compares = options.compares_data and not self.can.without_canaries
        self._told = self.can.told if options.compares_data else None
        self._global_batch = 1
        self._place = Place(reached=True, between=True)
        self._standing: SourceState | None = None  # the last state between epochs: the source stands there by itself
        self._live: Draws | None = None
        self._left: SourceState | None = None  # of an epoch that another rank has ended
        self._dealer = Dealer(backend, self.can, compares=self._compares)

    def fingerprint(self) -> dict[str, Any]:
        """Return kind, identity, randomness and tail; and the rank, where each has a stream of its own."""
        sampler = {"name": "source-order-v1"}
        fingerprint = fingerprint_of(self.backend, self._options, self._randomness, sampler, self._tail)
        if self._options.shard is False:
            world = self._options.find_world()
            fingerprint |= {"rank": world.rank, "world_size": world.size}
        return fingerprint

    def fingerprint_for(self, state: State) -> dict[str, Any]:
        """Return the fingerprint, under the identity by which the state knows the stream."""
        kind = state.fingerprint["backend.kind"]
        own = self.fingerprint() | ({"backend.kind": kind} if kind in self.can.kinds else {})
        return as_the_state_knows(own, self.can.also, state)

    def check(self, state: State, global_batch: int) -> None:
        """Refuse nothing: what the source gives at the place is compared when it is there."""

    def adopt(self, state: State, global_batch: int) -> Mark:  # noqa: ARG002  # the protocol has it
        """Take over the kind of the state, where the source can be of several; it goes to the place when opened."""
        kind = state.fingerprint["backend.kind"]
        if kind != self.backend.kind:
            self.can.kinds[kind]()
        return state.mark

    def plan(self, global_batch: int) -> Plan | None:
        """Return the plan of the epochs where the source knows its length; what ends an epoch is the source."""
        length = self.can.length
        return Schedule(length, global_batch, self._tail) if length else None

    def finished(self, cursor: Cursor, global_batch: int) -> bool:
        """Return whether no batch of the cursor's epoch is left, as far as the source's length tells."""
        plan = self.plan(global_batch)
        return plan is not None and plan.finished(cursor)

    def following(self, cursor: Cursor, global_batch: int) -> Cursor:  # noqa: ARG002  # the protocol has it
        """Return the beginning of the next epoch."""
        return Cursor(cursor.epoch + 1)

    def world(self) -> World:
        """Return the world that shares a stream: all ranks, or only this one where each draws its own."""
        return World() if self._options.shard is False else self._options.find_world()

    def source_now(self, source: SourceState | None) -> SourceState | None:
        """Return it as it is: the place of a stream is what was read of it."""
        return source

    def begins_with(self, source: SourceState | None) -> SourceState | None:
        """Return all of it: it is the place."""
        return source

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
            place.ended = self._live.has_ended(place.position, self.can.ended)
            if place.ended:
                self._take_snapshot(place)
        if place.base is None:
            return None
        state = replace(place.base, skip=place.position - place.taken, ended=place.ended)
        if place.between and place.reached:
            self._standing = state
        return state

    def state_before(self, cursor: Cursor) -> tuple[SourceState | None, Canary | None]:
        """Return the state by the last snapshot, without asking the source; where it is replayed, the canary."""
        place = self._place
        if self._has_state and place.base is not None:
            return replace(place.base, skip=cursor.position - place.taken, ended=False), None
        last = place.earlier
        return None, last[1] if last is not None and last[0] == cursor.position else None

    def canary(self) -> Canary | None:
        """Return the canary of the place for which `source_state` was just asked: of the element that comes next there.

        Of the one before it, where the source is replayed. Nothing is drawn for it.
        """
        place = self._place
        if place.base is None:
            return place.last[1] if place.last is not None and place.last[0] == place.position else None
        if not self._compares or place.ended or not place.reached or self._live is None or not self._live.ahead:
            return None
        return Canary(self._live.ahead[0])

    def leave(self, mark: Mark, global_batch: int) -> SourceState | None:
        """Return the source's state at the beginning of the next epoch, as the loop leaves this one at a mark.

        Elements that make no whole batch (`tail="drop"`) may be left. They are read here, as otherwise a source that
        goes on where it stands would give nothing but them in its next pass.
        """
        cursor, state = mark.cursor, mark.source
        if self.can.forgets:
            return None
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
        check_divided(global_batch, world, self._tail, self._options, self.can)
        self._global_batch = global_batch
        if state is not None and state.ended and cursor.position:
            self._place = Place(replace(state, skip=0, ended=False), between=True)
            return
        draws, self._left = self._draws(cursor.epoch), None
        self._live = draws
        try:
            self._start(draws, mark)
            yield from self._rounds(draws, cursor, world)
        finally:
            self._place.reached, self._live = False, None
            draws.close()
        early = self._left is not None  # then the source stands after elements that were drawn ahead
        self._place = Place(self._left, reached=not early, between=not early)

    def _rounds(self, draws: Draws, cursor: Cursor, world: World) -> Iterator[tuple[Any, Cursor]]:
        place, size = self._place, self._global_batch
        end = find_end(self._options, self.can, cursor)
        ahead = self._look_ahead(end, draws, cursor, world)
        while not place.ended:
            if end is not None and end.is_reached(cursor, ahead):
                self._left = None if self.can.forgets else left_early(self.source_state(), cursor)
                break
            if place.reached and self.can.eager and self._is_stale(place, asked=True):
                self._take_snapshot(place)
            place.reached = False
            drawn = self._dealer.draw(draws, cursor, size, world)
            if not drawn.total or (drawn.total < size and self._tail == "drop"):
                break
            after = cursor.position + drawn.total
            needed = (self._compares or self._told) and not (self._has_state and place.base is not None)
            last = (after, Canary(self._told(after) if self._told else drawn.last[0])) if needed else None
            batch = draws.assemble(drawn.own, cursor.position + drawn.start)
            cursor = Cursor(cursor.epoch, after, cursor.step + 1)
            place.position, place.ended = cursor.position, drawn.total < size
            place.last, place.earlier = last, place.last
            place.reached = True
            if end is not None and self._compares:
                end.compare_element(cursor, drawn.last[0])
            ahead = self._look_ahead(end, draws, cursor, world)
            yield batch, cursor
        if end is not None:
            end.is_over()

    def _look_ahead(self, end: AgreedEnd | None, draws: Draws, cursor: Cursor, world: World) -> int:
        """Look how many elements of another batch come after a place, where other ranks have to know it."""
        if end is None:
            return 0
        least = size = self._global_batch
        if draws.strides and world.size > 1 and not self._has_state:
            ahead = self._dealer.look(draws, cursor, size, world)
            known = size if ahead == size else 0  # of a part, each rank sees its own elements
        else:
            if self._place.reached:
                self.source_state()
            least = size if self._tail == "drop" else 1
            known = ahead = size if not self._place.ended and draws.has(cursor.position, least) else len(draws.ahead)
        end.looked_ahead(cursor, known, more=ahead >= least)
        return known

    def _start(self, draws: Draws, mark: Mark) -> None:
        """Bring the source to a mark, and compare what it gives there with the mark's canary."""
        canary = mark.canary if self._compares or self._told else None
        if mark.source is not None:
            self._go(draws, mark)
            if canary is not None:
                self._compare_ahead(draws, mark, canary)
            return
        differs = self._go(draws, mark, last=canary)
        if differs is None or canary is None:
            return
        if draws.skipped and not self.can.goes_on and self._told is None:
            own, before = not draws.borrows, mark.cursor.position - 1
            differs = self._go(draws, mark, last=canary, read=True)
            if differs is None:
                self._tell_of_skip(skipped_elsewhere(self._name(), before), mark, refuse=own)
                return
        position, drawn = mark.cursor.position - 1, self._told is not None
        self._tell(read_otherwise(self._name(), differs, canary, position, drawn=drawn), mark)

    def _tell_of_skip(self, message: str, mark: Mark, *, refuse: bool) -> None:
        """Refuse a skip() that was made for this; one that was not is not asked for."""
        if refuse:
            self._tell(message, mark)
        else:
            logging.getLogger("resumable").warning("%s\nThe elements were read instead.", message)

    def _compare_ahead(self, draws: Draws, mark: Mark, canary: Canary) -> None:
        """Compare the element that comes next; if it is another one, bring the source to the mark in its other way."""
        position = mark.cursor.position
        differs, tried = differs_ahead(draws, position, canary), self.can.restore_otherwise is not None
        if differs is None:
            return
        if self._replays:
            self._tell(read_otherwise(self._name(), differs, canary, position), mark)
            return
        if tried:
            self._go(draws, mark, otherwise=True)
            if differs_ahead(draws, position, canary) is None:
                return
            self._go(draws, mark)  # as it goes on if nothing compares
        self._tell(gone_elsewhere(self._name(), differs, canary, position, tried=tried), mark)

    def _name(self) -> str:
        return str(self.backend.identity.get("source", self.backend.kind))

    def _tell(self, message: str, mark: Mark) -> None:
        if mark.strict:
            raise StateMismatchError(message)
        warnings.warn(message + "\nGone on with because of strict=False.", StateMismatchWarning, stacklevel=2)

    def _go(
        self, draws: Draws, mark: Mark, *, last: Canary | None = None, otherwise: bool = False, read: bool = False
    ) -> str | None:
        """Bring the source to a mark: by itself, by its own snapshot, or from the epoch's beginning.

        Args:
            draws: of the mark's epoch.
            mark: the place.
            last: canary of the element before the place.
            otherwise: give the source its snapshot back in its other way.
            read: do not let it skip.

        Returns:
            The element before the place in words, if it is not that of the canary.
        """
        cursor, state, standing = mark.cursor, None if self._replays else mark.source, self._standing
        self._standing = None
        skip = cursor.position if state is None else state.skip
        base = None if state is None else replace(state, skip=0, ended=False)
        self._place = place = Place(base, cursor.position - skip, cursor.position)
        if state is None or state is standing:
            draws.begin(lambda: self.backend.open(cursor.epoch))
        elif isinstance(state, LeftEarly):
            self._leave_again(state, mark, otherwise=otherwise)
            self._place = place
            draws.begin(lambda: self.backend.open(cursor.epoch))
        else:
            self._restore(draws, mark, state, otherwise=otherwise)
        found, differs = skip_and_compare(draws, cursor.position - skip, skip, last, read=read, told=self._told)
        if found < skip and draws.skipped and not self.can.goes_on and last is not None:
            return "the end of the epoch"
        if found < skip:
            raise too_few(cursor.position, cursor.position - skip + found)
        return differs

    def _leave_again(self, state: LeftEarly, mark: Mark, *, otherwise: bool) -> None:
        """Go the way of a run that left an epoch in its middle: to that place, and no further."""
        draws = self._draws(state.epoch)
        left = Mark(Cursor(state.epoch, state.position), state.before, strict=mark.strict)
        self._go(draws, left, otherwise=otherwise)
        draws.close()

    def _restore(self, draws: Draws, mark: Mark, state: AtPlace, *, otherwise: bool) -> None:
        """Bring the source back: into an epoch, or between two, where some know how to begin the later one."""
        epoch, backend = mark.cursor.epoch, self.backend
        if not isinstance(backend, SnapshotBackend):
            raise without_state(self._name())
        snapshot = copy.deepcopy(state.snapshot)
        if not mark.strict and self.can.lenient is not None:
            snapshot = self.can.lenient(snapshot)
        again = (self.can.restore_otherwise if otherwise else None) or backend.restore
        if mark.cursor.position == state.skip:
            again = self.can.reopen or again
            draws.begin_or(lambda: given_back(lambda: again(epoch, snapshot), snapshot), lambda: backend.open(epoch))
        else:
            draws.begin(lambda: given_back(lambda: again(epoch, snapshot), snapshot))

    def _is_stale(self, place: Place, *, asked: bool) -> bool:
        """Return whether a new snapshot is due; none can be taken where the source is ahead of the place."""
        if self._live is not None and self._live.ahead:
            return False
        every = 1 if asked else self.can.snapshot_every
        if isinstance(place.base, LeftEarly):  # so that such states never have one another inside
            return place.position > place.taken
        return place.position - place.taken >= every * self._global_batch

    def _take_snapshot(self, place: Place) -> None:
        backend: Any = self.backend  # a SnapshotBackend, as its caller knows
        with (self._live or self._draws(0)).guard():
            snapshot = copy.deepcopy(backend.snapshot())
        place.base, place.taken = None if snapshot is None else AtPlace(snapshot), place.position

    def _draws(self, epoch: int) -> Draws:
        stream = (self._options.find_world().rank,) if self._options.shard is False else ()
        return Draws(self._options, epoch, stream, seeds=self._seeds)
