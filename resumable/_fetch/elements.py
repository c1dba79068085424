"""The fetcher of snapshot and replay backends, whose sources yield elements in their own order.

In each round, every rank reads the elements of the whole global batch and keeps its share. So ranks with the same
source get disjoint parts of one stream (with one element per rank: round-robin). If a source divides itself among the
ranks already (`shard=False`), each rank reads only for itself, and the state belongs to that rank.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from resumable._content import Canary
from resumable._fetch.element_reader import FEW, ElementReader, too_few
from resumable._fetch.fetcher import as_the_state_knows, fingerprint_of
from resumable._fetch.frameworks import (
    HasOtherKinds,
    HasReplayWitness,
    HasWorkerStates,
    LogicalStreams,
    Reopens,
    RestoresOtherwise,
    inside_of,
)
from resumable._fetch.own_state import given_back, without_state
from resumable._fetch.past import Lengths, Past, Run
from resumable._fetch.positioning import Positioner, shows_nothing
from resumable._fetch.rank_splitting import RankSplitter, find_end, left_early
from resumable._introspection import offers
from resumable._order.cursor import Cursor
from resumable._order.plan import Schedule, check_share
from resumable._order.world import World
from resumable._randomness.keys import SEEDING
from resumable._state import AtPlace, LeftEarly, Mark
from resumable.errors import ConfigurationError, PromiseWarning, StateMismatchError, StateMismatchWarning
from resumable.protocols import SnapshotBackend, SupportsEnded, traits_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from resumable._fetch.rank_splitting import AgreedEnd
    from resumable._options import Options
    from resumable._order.plan import Plan, Tail
    from resumable._randomness.keys import Randomness
    from resumable._state import SourceState, State
    from resumable.protocols import ReplayBackend, Traits

__all__ = ["ElementFetcher"]


class ElementFetcher:
    """Rounds of elements, each with the randomness of its position.

    Args:
        backend: yields the elements, and takes snapshots if it can.
        tail: "drop" or "partial".
        randomness: how often the global RNGs are seeded.
        options: seed, world, batch size, transform, collate, shard, and how often to take a snapshot.
    """

    unit = "element"
    remembers, interleaved = True, False

    def __init__(self, backend: ReplayBackend, tail: Tail, randomness: Randomness, options: Options) -> None:
        self.backend, self._tail, self._options = backend, tail, options
        self._randomness = randomness
        self.traits, self.inside = traits_of(backend), inside_of(backend)
        self._streams = backend if offers(backend, LogicalStreams) else None
        self._dealt = self._streams is not None and self._streams.dealt_round_robin
        self._resets = self._streams is not None and self._streams.resets_each_epoch
        self._kinds = backend.other_kinds if offers(backend, HasOtherKinds) else {}
        self._worker_states = backend if offers(backend, HasWorkerStates) else None
        self._otherwise = backend.restore_otherwise if offers(backend, RestoresOtherwise) else None
        self._reopen = backend.reopen if offers(backend, Reopens) else None
        self._ended = backend.ended if offers(backend, SupportsEnded) else None
        self._seeds = randomness in SEEDING and not self.traits.keyed
        self._replays = options.replays
        self._run = Run(self._name) if options.resume == "replay_run" else None
        self._has_state = offers(backend, SnapshotBackend) and not self._replays  # stored, because asking takes time
        self._compares = options.compares_data and not self.traits.compares_itself
        self._told = False  # that elements show no content
        self._past = Past(backend, self._reader, self._name) if options.compares_data and self._run is None else None
        several = self._streams is not None or self.inside.shows.get("num_workers", 0) > 1
        told = None if several else self.traits.length
        self._lengths = Lengths(self._name, told) if options.compares_data else None
        self._saved_past: tuple[Cursor | None, dict[str, Any] | None] = None, None  # of the last state, and its cursor
        self._witness = None
        if options.compares_data and offers(backend, HasReplayWitness):
            self._witness = backend.replay_witness
        self._global_batch = 1
        self._place = SnapshotCursor(reached=True, between=True)
        self._standing: SourceState | None = None  # the last state between epochs, if the source is there
        self._newest: SourceState | None = None  # the last one that was asked for
        self._live: ElementReader | None = None
        self._left: SourceState | None = None  # the state of an epoch that a different rank has ended
        self._splitter = RankSplitter(backend, dealt=self._dealt, tries=self._compares and not self.traits.goes_on)

    def fingerprint(self) -> dict[str, Any]:
        """Return kind, identity, randomness and tail, and the rank if each rank has a separate stream."""
        sampler = {"name": "source-order-v1"}
        fingerprint = fingerprint_of(self.backend, self._options, self._randomness, sampler, self._tail)
        if self._options.shard is False:
            world = self._options.find_world()
            fingerprint |= {"rank": world.rank, "world_size": world.size}
        return fingerprint

    def fingerprint_for(self, state: State) -> dict[str, Any]:
        """Return the fingerprint with the identity that the state uses for the stream."""
        kind = state.fingerprint["backend.kind"]
        own = self.fingerprint() | ({"backend.kind": kind} if type(kind) is str and kind in self._kinds else {})
        return as_the_state_knows(own, None if self._streams is None else self._streams.alternate_identity, state)

    def replayed(self, snapshot: Any) -> int:
        """Return how many elements the source reads again when a snapshot is restored, if it knows."""
        return 0 if self._worker_states is None else self._worker_states.replayed(snapshot)

    def check(self, state: State, plan: Plan | None) -> None:
        """Accept any state: the element at its position is compared once the source is there."""

    def continuation(self, state: State) -> None:  # the protocol has it
        """Return None: the order is the source's own."""

    def adopt(self, state: State, global_batch: int) -> Mark:  # noqa: ARG002  # the protocol has it
        """Use the state's kind, if the source supports several. The source moves to the position when it is opened."""
        kind = state.fingerprint["backend.kind"]
        if kind != self.backend.kind:
            self._kinds[kind]()
        if self._past is not None:
            self._past.expect(state.mark.cursor, state.past)
            self._saved_past = state.mark.cursor, state.past
        if self._lengths is not None:
            self._lengths.load(state.mark.cursor.epoch, state.past)
        return state.mark

    def past(self, mark: Mark) -> dict[str, Any] | None:
        """Return what was seen of the epochs before a mark."""
        found = self._epoch_before(mark)
        return found if self._lengths is None else self._lengths.added_to(found, mark.cursor.epoch)

    def _epoch_before(self, mark: Mark) -> dict[str, Any] | None:
        """Return what was seen of the epoch before a mark, if the source is opened again in each epoch."""
        if self._past is None or not self._opens_again(mark):
            return None
        cursor, place = mark.cursor, self._place
        compared = place.base is not None or self._compares or cursor.epoch > 0
        over = place.ended and place.position == cursor.position and not compared
        if cursor.position and (over if mark.source is None else mark.source.ended):  # the next epoch is opened next
            self._past.ended(cursor.epoch)
            found = self._past.as_dict(cursor.epoch + 1)
        elif self._saved_past[0] == cursor:  # only loaded, or peek() has opened the next epoch
            return self._saved_past[1]
        else:
            found = self._past.as_dict(cursor.epoch)
        self._saved_past = cursor, found
        return found

    def _opens_again(self, mark: Mark) -> bool:
        """Return whether getting to a mark means to open the source, without restoring a state."""
        source, workers = mark.source, self._worker_states
        if source is None or self._replays:
            return True
        return isinstance(source, AtPlace) and workers is not None and workers.replayed(source.snapshot) > 0

    def plan(self, global_batch: int, ranks: int | None = None) -> Plan | None:  # noqa: ARG002  # the protocol has it
        """Return the plan of the epochs if the source knows its length. Still, only the source ends an epoch."""
        length = self.traits.length
        return Schedule(length, global_batch, self._tail) if length else None

    def finished(self, cursor: Cursor, global_batch: int) -> bool:
        """Return whether no batch of the cursor's epoch is left, if the source knows its length."""
        plan = self.plan(global_batch)
        return plan is not None and plan.finished(cursor)

    def following(self, cursor: Cursor, global_batch: int) -> Cursor:  # noqa: ARG002  # the protocol has it
        """Return the start of the next epoch."""
        return Cursor(cursor.epoch + 1)

    def world(self) -> World:
        """Return the world that shares a stream: all ranks, or only this one if each reads its own."""
        return World() if self._options.shard is False else self._options.find_world()

    def source_now(self, source: SourceState | None) -> SourceState | None:
        """Return the state, with what the loop has changed on a sampler since, if no batch was read since.

        The position of any other stream depends only on what was read.
        """
        place, ahead = self._place, self._live is not None and bool(self._live.ahead)
        if not self.inside.follows or source is None or source is not self._newest or ahead:
            return source
        if not place.reached or place.taken < place.position:
            return source
        self._take_snapshot(place)
        return source if place.base is None else replace(place.base, skip=0, ended=source.ended)

    def begins_with(self, source: SourceState | None) -> SourceState | None:
        """Return the state unchanged: all of it is the position."""
        return source

    def source_state(self, *, asked: bool = True) -> SourceState | None:
        """Return the source's state after the last yielded batch; None if it is replayed.

        It reads one element ahead. The state of a source after its last element may already be the state of its next
        pass, and only reaching the end can tell. If called while an element is read (from a signal handler), it uses
        the last snapshot.
        """
        if not self._has_state:
            return None
        place = self._place
        if place.reached and (place.base is None or self._is_stale(place, asked=asked) or place.ended):
            self._take_snapshot(place)
        if place.reached and not place.ended and self._live is not None and place.base is not None:
            if asked and self._compares and self._ended is None and not self._live.ahead:
                self._live.has(place.position, FEW)
            place.ended = self._live.has_ended(place.position, self._ended)
            if place.ended:
                self._take_snapshot(place)
        if place.base is None:
            return None
        state = replace(place.base, skip=place.position - place.taken, ended=place.ended)
        if place.between and place.reached:
            self._standing = state
        self._newest = state
        return state

    def state_before(self, cursor: Cursor) -> tuple[SourceState | None, Canary | None]:
        """Return the state from the last snapshot, without asking the source; if it is replayed, the canary."""
        place = self._place
        if self._has_state and place.base is not None:
            return replace(place.base, skip=cursor.position - place.taken, ended=False), None
        last = place.earlier
        return None, last[1] if last is not None and last[0] == cursor.position else None

    def canary(self) -> Canary | None:
        """Return the canary for the position that `source_state` just returned, from the next element there.

        If the source is replayed, the canary is from the element before the position. No element is read for it.
        """
        place = self._place
        if place.base is None:
            return place.last[1] if place.last is not None and place.last[0] == place.position else None
        if not self._compares or place.ended or not place.reached or self._live is None or not self._live.ahead:
            return None
        first, *others = self._live.ahead[:FEW]
        canary = self._canary_of(first)
        canary.after = [Canary(one).digest or "" for one in others]
        return canary

    def _canary_of(self, element: Any) -> Canary:
        """Return the canary of an element.

        Warns:
            PromiseWarning: it shows no content. Only the first element can tell.
        """
        canary = Canary(element)
        if canary.unseen is not None and self._compares and not self._told:
            self._told = True
            warnings.warn(shows_nothing(self._name(), canary.unseen), PromiseWarning, stacklevel=2)
        return canary

    def leave(self, mark: Mark, global_batch: int) -> SourceState | None:
        """Return the source's state at the start of the next epoch, if the loop leaves this one at a mark.

        Elements that do not fill a batch (`tail="drop"`) may be left. They are read here. Otherwise a source that
        continues where it is would yield only them in its next pass.
        """
        cursor, state = mark.cursor, mark.source
        if self._past is not None:
            self._past.ended(cursor.epoch)
        if self._run is not None:
            self._run.refuse_leaving(cursor)
        if self._resets:
            return None
        if self._live is not None:
            state = self._look(self._live, global_batch)
        elif state is not None and not state.ended and cursor.position:
            state = self._look_again(mark, global_batch)
        if state is None or state.ended or cursor.position == 0:
            return state
        return LeftEarly(state, cursor.epoch, cursor.position)

    def _look_again(self, mark: Mark, global_batch: int) -> SourceState | None:
        """Go to a mark, and check there whether a batch is left."""
        reader = self._live = self._reader(mark.cursor.epoch)
        try:
            self._start(reader, mark)
            self._place.reached = True
            return self._look(reader, global_batch)
        finally:
            self._place.reached, self._live = False, None
            reader.close()

    def _look(self, reader: ElementReader, global_batch: int) -> SourceState | None:
        """Check whether a batch is left, and return the state of this position, or of the end."""
        place, least = self._place, global_batch if self._tail == "drop" else 1
        state = self.source_state()
        if state is None or state.ended or reader.has(place.position, least):
            return state
        place.ended = True
        return self.source_state()

    def open(self, mark: Mark, global_batch: int) -> Iterator[tuple[Any, Cursor]]:
        """Yield the rest of the mark's epoch: batches, each with the cursor after it."""
        world, cursor, state = self.world(), mark.cursor, mark.source
        check_divided(global_batch, world, self._tail, self._options, self.traits)
        self._global_batch = global_batch
        if state is not None and state.ended and cursor.position:
            self._place = SnapshotCursor(replace(state, skip=0, ended=False), between=True)
            return
        reader, self._left = self._reader(cursor.epoch), None
        self._live = reader
        try:
            self._start(reader, mark)
            elements = yield from self._rounds(reader, cursor, world)
            if self._lengths is not None and world.size == 1 and self._left is None:
                self._lengths.over(cursor, elements, restored=state is not None and not self._replays)
            if self._past is not None:
                self._past.ended(cursor.epoch)
            if self._run is not None and self._left is None:
                self._run.ended(cursor.epoch)
        finally:
            self._place.reached, self._live = False, None
            reader.close()
        early = self._left is not None  # then the source is past elements that were read ahead
        self._place = SnapshotCursor(self._left, reached=not early, between=not early)

    def _rounds(self, reader: ElementReader, cursor: Cursor, world: World) -> Generator[tuple[Any, Cursor], None, int]:
        """Yield the batches; return how many elements the epoch has."""
        left = 0
        place, size = self._place, self._global_batch
        end = None if self._dealt else find_end(self._options, cursor)
        ahead = self._look_ahead(end, reader, cursor, world)
        while not place.ended:
            if end is not None and end.is_reached(cursor, ahead):
                self._left = None if self._resets else left_early(self.source_state(), cursor)
                break
            # If reading fails, the source is past the elements that it lost, so a cheap snapshot is taken before it.
            # One that an earlier save took may lack what the loop has changed since.
            again = not self.traits.snapshot_every or (self.inside.follows and place.base is not None)
            if place.reached and again and self._is_stale(place, asked=True):
                self._take_snapshot(place)
            place.reached = False  # a signal handler may ask for a state while the source is in the middle of a batch
            drawn = self._splitter.draw(reader, cursor, size, world)
            if not drawn.total or (drawn.total < size and self._tail == "drop"):
                left = drawn.total
                break
            after = cursor.position + drawn.total
            last = None
            # Only a replay is compared with the element before the mark. With a snapshot, the element after it is used.
            if (self._compares or self._witness) and not (self._has_state and place.base is not None):
                last = after, self._canary_of(self._witness(after) if self._witness else drawn.last[0])
            if self._past is not None and cursor.position < FEW:
                seen = {after - 1: last[1]} if self._witness and last is not None else reader.first
                self._past.read(cursor.epoch, seen)
            batch = reader.assemble(drawn.own, cursor.position + drawn.start)
            cursor = Cursor(cursor.epoch, after, cursor.step + 1)
            place.position, place.ended = cursor.position, drawn.total < size
            place.last, place.earlier = last, place.last  # both, because the batch may not count yet: `state_before`
            place.reached = True
            if end is not None and self._compares:
                end.compare_element(cursor, drawn.last[0])
            ahead = self._look_ahead(end, reader, cursor, world)
            yield batch, cursor
        if end is not None:
            end.is_over()
        return cursor.position + left

    def _look_ahead(self, end: AgreedEnd | None, reader: ElementReader, cursor: Cursor, world: World) -> int:
        """Return how many elements of the next batch follow a position, if other ranks need to know."""
        if end is None:
            return 0
        least = size = self._global_batch
        if reader.strides and world.size > 1 and not self._has_state:
            ahead = self._splitter.look(reader, cursor, size, world)
            known = size if ahead == size else 0  # each rank sees only its own elements of an incomplete batch
        else:
            if self._place.reached:
                self.source_state()
            least = size if self._tail == "drop" else 1
            known = ahead = size if not self._place.ended and reader.has(cursor.position, least) else len(reader.ahead)
        end.looked_ahead(cursor, known, more=ahead >= least)
        return known

    def _start(self, reader: ElementReader, mark: Mark) -> None:
        """Bring the source to a mark, and compare its element there with the mark's canary."""
        canary = mark.canary if self._compares or self._witness else None
        positioner = Positioner(reader, self._name, lambda message: _report(message, mark))
        epoch = mark.cursor.epoch
        if self._past is not None and self._opens_again(mark):
            self._past.check(mark.cursor, lambda message: _report(message, mark))
            self._past.opening(epoch)
        self._go_to(reader, positioner, mark, canary)
        if self._past is not None:
            self._past.tell()

    def _go_to(self, reader: ElementReader, positioner: Positioner, mark: Mark, canary: Canary | None) -> None:
        epoch, position = mark.cursor.epoch, mark.cursor.position
        if mark.source is not None and not self._replays:
            ways = [lambda: self._restore(reader, mark)]
            if self._otherwise is not None:
                ways.append(lambda: self._restore(reader, mark, otherwise=True))
            positioner.restore(ways, position, canary)
            return
        self._standing, self._place = None, SnapshotCursor(position=position)
        if self._run is not None:
            self._run.replay_before(epoch, self._reader, self.backend)
        opener = partial(self.backend.open, epoch)
        found = positioner.replay(
            opener,
            position,
            canary,
            again=None if self.traits.goes_on else opener,  # a source that continues cannot start over
            announced=mark.source is not None,
            witness=self._witness,
        )
        if found < position:
            raise too_few(position, found)

    def _name(self) -> str:
        return str(self.backend.identity.get("source", self.backend.kind))

    def _restore(self, reader: ElementReader, mark: Mark, *, otherwise: bool = False) -> None:
        """Bring the source to a mark, using the mark's snapshot.

        Args:
            reader: of the mark's epoch.
            mark: has a state of the source.
            otherwise: restore the snapshot in the opposite order.

        Raises:
            StateMismatchError: the epoch ends before the mark.
        """
        cursor, state, standing = mark.cursor, mark.source, self._standing
        assert state is not None
        self._standing = None
        taken = cursor.position - state.skip
        self._place = place = SnapshotCursor(replace(state, skip=0, ended=False), taken, cursor.position)
        if state is standing:  # between two epochs, after the first: the source is there already
            reader.begin(lambda: self.backend.open(cursor.epoch))
        elif isinstance(state, LeftEarly):
            self._leave_again(state, mark, otherwise=otherwise)
            self._place = place
            reader.begin(lambda: self.backend.open(cursor.epoch))
        else:
            self._give_back(reader, mark, state, otherwise=otherwise)
        # The canary is from the element after the mark, so a borrowed skip() could not be checked.
        found = reader.skip(taken, state.skip, read=reader.borrows)
        if found < state.skip:
            raise too_few(cursor.position, taken + found)

    def _leave_again(self, state: LeftEarly, mark: Mark, *, otherwise: bool) -> None:
        """Repeat what a run did that left an epoch early: read up to that position, and no further."""
        reader = self._reader(state.epoch)
        left = Mark(Cursor(state.epoch, state.position), state.before, strict=mark.strict)
        self._restore(reader, left, otherwise=otherwise)
        reader.close()

    def _give_back(self, reader: ElementReader, mark: Mark, state: AtPlace, *, otherwise: bool) -> None:
        """Restore the source's snapshot, in an epoch or between two. Some sources can start the later one directly."""
        epoch, backend = mark.cursor.epoch, self.backend
        if not offers(backend, SnapshotBackend):
            raise without_state(self._name())
        snapshot = copy.deepcopy(state.snapshot)
        if not mark.strict and self._worker_states is not None:
            snapshot = self._worker_states.lenient(snapshot)
        again = (self._otherwise if otherwise else None) or backend.restore
        if mark.cursor.position == state.skip:
            again = self._reopen or again
            reader.begin_or(lambda: given_back(lambda: again(epoch, snapshot), snapshot), lambda: backend.open(epoch))
        else:
            reader.begin(lambda: given_back(lambda: again(epoch, snapshot), snapshot))

    def _is_stale(self, place: SnapshotCursor, *, asked: bool) -> bool:
        """Return whether a new snapshot is due. None can be taken while the source is ahead of the position."""
        if self._live is not None and self._live.ahead:
            return False
        if asked and self.inside.follows:
            return True
        every = 1 if asked else self.traits.snapshot_every or 1
        if isinstance(place.base, LeftEarly):  # so such states are never nested
            return place.position > place.taken
        return place.position - place.taken >= every * self._global_batch

    def _take_snapshot(self, place: SnapshotCursor) -> None:
        backend: Any = self.backend  # a SnapshotBackend: the caller has checked
        with (self._live or self._reader(0)).guard():
            snapshot = copy.deepcopy(backend.snapshot())
        place.base, place.taken = None if snapshot is None else AtPlace(snapshot), place.position

    def _reader(self, epoch: int) -> ElementReader:
        stream = (self._options.find_world().rank,) if self._options.shard is False else ()
        return ElementReader(self._options, epoch, stream, seeds=self._seeds)


def _report(message: str, mark: Mark) -> None:
    if mark.strict:
        raise StateMismatchError(message)
    warnings.warn(message + "\nContinuing because of strict=False.", StateMismatchWarning, stacklevel=2)


@dataclass(slots=True)
class SnapshotCursor:
    """The position after the last delivered batch, in a source with its own state.

    Args:
        base: the last snapshot that was taken, or the state from a mark.
        taken: the position of `base`.
        position: after the last delivered element.
        ended: the source is known to be at the end of this epoch.
        reached: the source itself is at this position now, so a new snapshot would belong to it.
        between: the position is between two epochs, or before the first.
        last: the canary of the element before it, with its position.
        earlier: the same for the position before the last delivered batch.
    """

    base: SourceState | None = None
    taken: int = 0
    position: int = 0
    ended: bool = False
    reached: bool = False
    between: bool = False
    last: tuple[int, Canary] | None = None
    earlier: tuple[int, Canary] | None = None


def check_divided(global_batch: int, world: World, tail: Tail, options: Options, traits: Traits) -> None:
    """Reject a stream that these ranks cannot divide among them.

    Raises:
        ConfigurationError: it is unknown who divides it; or the ranks could end with different numbers of batches.
        UnevenBatchError: a rank would get fewer elements than the others.
    """
    if world.size > 1 and options.shard is None and traits.needs_shard:
        raise ConfigurationError(
            f"with {world.size} ranks, the source does not say whether each rank reads the whole stream or its own "
            "part.\nA wrong guess would lose or repeat batches. Pass wrap(..., shard=True) if every rank's source "
            "yields the same elements and the ranks should divide them, or shard=False if the source or its sampler "
            "divides them by rank already."
        )
    check_share(global_batch, world)
    if tail == "partial" and world.size > 1:
        raise ConfigurationError(
            f'with tail="partial", {world.size} ranks could end with different numbers of batches: '
            'this source has no length.\nSome ranks would wait for the others forever. Use tail="drop".'
        )
