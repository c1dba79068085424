"""The fetcher of indexed backends: our plan and sampler say what to read."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from resumable._fetch.binding import Binding
from resumable._fetch.fingerprints import fingerprint_of
from resumable._fetch.order import Order
from resumable._fetch.own_state import Follower
from resumable._fetch.strided import Strided
from resumable._introspection import ask
from resumable._order.cursor import Cursor
from resumable._order.plan import Schedule, check_share
from resumable._state import check_position, check_remembered
from resumable.errors import BackendError, ConfigurationError
from resumable.protocols import capabilities_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable._options import Options
    from resumable._order.plan import Plan, Tail
    from resumable._order.world import World
    from resumable._randomness.keys import Randomness
    from resumable._state import Mark, SourceState, State
    from resumable.protocols import IndexedBackend, Request
    from resumable.samplers import Sampler

__all__ = ["IndexedFetcher"]


class IndexedFetcher:
    """Requests of this rank for every global batch, computed from the position alone.

    Args:
        backend: reads the requests.
        sampler: maps positions to sample indices.
        tail: tail policy.
        randomness: mode, for the state.
        options: seed and world.
    """

    unit = "sample"

    def __init__(
        self, backend: IndexedBackend, sampler: Sampler, tail: Tail, randomness: Randomness, options: Options
    ) -> None:
        self.backend, self._tail = backend, tail
        self._randomness, self._options = randomness, options
        self.can = capabilities_of(backend)
        ordered = _by_epoch(sampler, self.can.shows.get("dataset"))
        self._binding = Binding(ordered, lambda: (options.batch_size or 1) * options.find_world().size)
        self._facts: tuple[Sampler, dict[str, Any]] | None = None
        self._order: Order | None = None
        own = None if options.evaluation else self.can.own_state
        self._own = None if own is None else Follower(own)

    @property
    def sampler(self) -> Sampler:
        """Maps positions to sample indices."""
        return self._binding.sampler

    @property
    def remembers(self) -> bool:
        """Whether the source has a state of its own."""
        return self._own is not None

    def fingerprint(self) -> dict[str, Any]:
        """Return kind, identity, length, randomness, sampler and tail; and the rank, where each remembers its own."""
        sampler = self.sampler
        if self._facts is None or self._facts[0] is not sampler:
            self._facts = sampler, self._facts_of(sampler)
        return {**self._facts[1], **self._whose()}

    def fingerprint_for(self, state: State) -> dict[str, Any]:
        """Return the fingerprint with the tail that an earlier version gave this very source, if that is the state's.

        A state that lacks what the source remembers belongs to no rank.
        """
        own = self._facts_of(self._binding.like(state)) | ({} if state.mark.source is None else self._whose())
        tail = state.fingerprint["tail"]
        return {**own, "tail": tail} if self._keeps_tail(tail) else own

    def _facts_of(self, sampler: Sampler) -> dict[str, Any]:
        return fingerprint_of(self.backend, self._options, self._randomness, sampler.spec(), self._tail)

    def _whose(self) -> dict[str, int]:
        if self._own is None:
            return {}
        world = self.world()
        return {"rank": world.rank, "world_size": world.size} if world.size > 1 else {}

    def _keeps_tail(self, tail: Any) -> bool:
        return self.can.older_tail is not None and bool(tail == self.can.older_tail != self._tail)

    def check(self, state: State, global_batch: int) -> None:
        """Refuse a position that the epoch does not have, and what another source remembers.

        Raises:
            StateFormatError: the epoch does not have it.
            StateMismatchError: this source has nothing to take back what the state remembers.
        """
        check_position(state, self.plan(global_batch))
        check_remembered(state.mark.source, takes=self._own is not None)

    def adopt(self, state: State, global_batch: int) -> Mark:
        """Go on with the state's sampler, the tail of an earlier version, and with what the source remembered.

        An epoch that was over stays so, also where it has more samples for this number of ranks.
        """
        if self._own is not None:
            self._own.go_to(state.mark.source)
        self._binding.adopt(state)
        tail = state.fingerprint["tail"]
        if self._keeps_tail(tail):
            self._tail, self._facts = tail, None
        cursor, plan = state.mark.cursor, self._schedule(global_batch, self.world().size)
        if self._schedule(state.global_batch, state.world_size).finished(cursor) and not plan.finished(cursor):
            return state.mark._replace(cursor=Cursor(cursor.epoch, plan.end, cursor.step))
        return state.mark

    def plan(self, global_batch: int) -> Plan:
        """Return how the epochs are cut into batches."""
        return self._schedule(global_batch, self.world().size)

    def _schedule(self, global_batch: int, ranks: int) -> Schedule:
        by_ranks = self._tail in {"pad_ranks", "drop_ranks"}
        return Schedule(self.sampler.length, global_batch, self._tail, ranks if by_ranks else 1)

    def finished(self, cursor: Cursor, global_batch: int) -> bool:
        """Return whether no batch of the cursor's epoch is left."""
        return self.plan(global_batch).finished(cursor)

    def following(self, cursor: Cursor, global_batch: int) -> Cursor:
        """Return where the epoch after the cursor's begins."""
        return self.plan(global_batch).following(cursor)

    def world(self) -> World:
        """Return the world that was given, or the one that is there now."""
        return self._options.find_world()

    def canary(self) -> None:
        """Return nothing: a sample is known by its index."""
        return

    def source_now(self, source: SourceState | None) -> SourceState | None:
        """Return what the source remembers now, if it stands there."""
        return source if self._own is None else self._own.now(source)

    def begins_with(self, source: SourceState | None) -> None:  # the protocol has it
        """Return None: an evaluation leaves alone what its dataset remembers, as that may be the training's, too."""

    def source_state(self, *, asked: bool = True) -> SourceState | None:  # noqa: ARG002  # the protocol has it
        """Return what the source remembers after the last batch; None where the position says it all."""
        return None if self._own is None else self._own.state()

    def state_before(self, cursor: Cursor) -> tuple[SourceState | None, None]:  # noqa: ARG002  # the protocol has it
        """Return what the source remembered before the last batch."""
        return None if self._own is None else self._own.before(), None

    def leave(self, mark: Mark, global_batch: int) -> SourceState | None:  # noqa: ARG002  # the protocol has it
        """Return what the source remembers at a mark: the next epoch is just another number."""
        return mark.source

    def open(self, mark: Mark, global_batch: int) -> Iterator[tuple[Any, Cursor]]:
        """Yield the rest of the mark's epoch: batches, each with the cursor after it."""
        world = self._options.find_world()
        self._binding.open(global_batch)
        order = self._order_of(self.plan(global_batch), world)
        check_share(global_batch, world)
        _check_last(order.plan, mark.cursor, world)
        asked: deque[Cursor] = deque()
        batches = self._read(mark, order.rest_of_epoch(mark.cursor, world, asked))
        if self._own is not None:
            self._own.go_to(mark.source)
            batches = self._own.follow(batches)
        try:
            for batch in batches:
                if not asked:
                    raise BackendError(f"the backend {self.backend.kind!r} yielded more batches than it was asked for.")
                yield batch, asked.popleft()
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()
        if asked:
            raise BackendError(
                f"the backend {self.backend.kind!r} ended {len(asked)} batches early, at {asked[0]}.\n"
                "Its read() must yield one batch per request."
            )

    def _read(self, mark: Mark, requests: Iterator[Request]) -> Iterator[Any]:
        """Read with the settings with which the mark's epoch began; those that are set are for the epochs after it."""
        in_force, tells, change = mark.in_force, self.can.settings, self.can.set_settings
        now = None if tells is None else tells()
        if in_force is None or change is None or now is None or now == in_force:
            return self.backend.read(requests)
        change(in_force)
        try:
            return self.backend.read(requests)
        finally:
            change(now)

    def sample_indices(self, cursor: Cursor, plan: Plan, world: World) -> list[int]:
        """Return which samples a rank gets in the batch after the cursor, without reading any."""
        return self._order_of(plan, world).next_indices(cursor, world)

    def _order_of(self, plan: Plan, world: World) -> Order:
        """Return the order under a plan: the one that workers know already, unless plan or sampler changed."""
        seed, keyed = self._options.stream_seed, self._randomness == "sample"
        if self.can.strided:  # which is made for a number of ranks, and no worker knows it
            return Strided(self.sampler, plan, seed, keyed=keyed, ranks=world.size)
        if self._order is None:
            self._order = Order(self.sampler, plan, seed, keyed=keyed)
        elif plan != self._order.plan or self.sampler is not self._order.sampler:
            self._order = self._order.changed(plan, self.sampler)
        return self._order


def _check_last(plan: Plan, cursor: Cursor, world: World) -> None:
    """Refuse a last batch that would leave a rank without samples, and so the other ranks waiting for it."""
    if (last := plan.smallest(cursor)) < world.size:
        raise ConfigurationError(
            f"the last global batch of the epoch has {last} samples, fewer than the {world.size} ranks.\n"
            "A rank would get no batch and the others would wait for it. "
            'Use tail="drop", "pad", "pad_ranks" or "carry", or drop_last=True in the DataLoader.'
        )


def _by_epoch(sampler: Sampler, source: Any) -> Sampler:
    """Return the order with the epoch in its indices, where a source has other samples in each epoch."""
    method = ask(type(source), "resumable_epochs")
    epochs: Sampler = sampler if method is None else method(source, sampler)
    return epochs
