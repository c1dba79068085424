"""The fetcher of indexed backends: the package's plan and sampler decide what to read."""

from __future__ import annotations

import warnings
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from resumable._fetch.fetcher import fingerprint_of
from resumable._fetch.frameworks import HasSettings, HasTorchOrder, inside_of
from resumable._fetch.order import Interleaved, Order
from resumable._fetch.own_state import Follower
from resumable._introspection import ask, length_or_none, offers, qualname_of
from resumable._order.cursor import Cursor
from resumable._order.plan import Schedule, check_share
from resumable._randomness.keys import KEYED
from resumable._state import check_position, check_remembered
from resumable._warn import warn
from resumable.errors import BackendError, ConfigurationError, PromiseWarning, ShuffleWarning
from resumable.protocols import SupportsOwnState, traits_of
from resumable.samplers.base import Bindable, Continuable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from resumable._options import Options
    from resumable._order.plan import Plan, Tail
    from resumable._order.world import World
    from resumable._randomness.keys import Randomness
    from resumable._state import Mark, SourceState, State
    from resumable.protocols import IndexedBackend, Request
    from resumable.samplers import Sampler
    from resumable.samplers.base import Continuation

    class Saved(Protocol):
        """A state, reduced to what must be the same in both runs."""

        @property
        def fingerprint(self) -> Mapping[str, Any]:
            """Values by dotted names, the sampler's after "sampler."."""
            ...


__all__ = ["IndexedFetcher", "SamplerResolution", "by_epoch"]


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
        self.traits, self.inside = traits_of(backend), inside_of(backend)
        torchs = backend if offers(backend, HasTorchOrder) else None
        self.interleaved = torchs is not None and torchs.interleaved
        self._older_tail = None if torchs is None else torchs.older_tail
        self._settings = backend if offers(backend, HasSettings) else None
        ordered = by_epoch(sampler, self.inside.shows.get("dataset"))
        self._counted = length_or_none(self.inside.shows.get("dataset"))
        self._binding = SamplerResolution(ordered, lambda: (options.batch_size or 1) * options.find_world().size)
        self._facts: tuple[Sampler, dict[str, Any]] | None = None
        self._order: Order | None = None
        own = backend.own_state if offers(backend, SupportsOwnState) and not options.evaluation else None
        self._own = None if own is None else Follower(own)

    @property
    def sampler(self) -> Sampler:
        """Maps positions to sample indices."""
        return self._binding.sampler

    @property
    def remembers(self) -> bool:
        """Whether the source has its own state."""
        return self._own is not None

    def fingerprint(self) -> dict[str, Any]:
        """Return kind, identity, length, randomness, sampler and tail, and the rank if each rank has its own state."""
        sampler = self.sampler
        if self._facts is None or self._facts[0] is not sampler:
            self._facts = sampler, self._facts_of(sampler)
        return {**self._facts[1], **self._whose()}

    def fingerprint_for(self, state: State) -> dict[str, Any]:
        """Return the fingerprint, with the tail that an earlier version chose for the same source if the state has it.

        A state without the source's own state does not belong to a particular rank.
        """
        own = self._facts_of(self._binding.like(state)) | ({} if state.mark.source is None else self._whose())
        if self.continuation(state) is not None:
            own = {name: value for name, value in own.items() if not name.startswith("sampler.")}
            own |= {name: value for name, value in state.fingerprint.items() if name.startswith("sampler.")}
            own["backend.length"] = state.fingerprint.get("backend.length")
        tail = state.fingerprint["tail"]
        return {**own, "tail": tail} if self._keeps_tail(tail) else own

    def continuation(self, state: State) -> Continuation | None:
        """Return what differs from the mixture of a state, if only samples after its position do."""
        return self._binding.continuation(state, state.mark.cursor)

    def _facts_of(self, sampler: Sampler) -> dict[str, Any]:
        return fingerprint_of(self.backend, self._options, self._randomness, sampler.spec(), self._tail)

    def _whose(self) -> dict[str, int]:
        if self._own is None:
            return {}
        world = self.world()
        return {"rank": world.rank, "world_size": world.size} if world.size > 1 else {}

    def _keeps_tail(self, tail: Any) -> bool:
        return self._older_tail is not None and bool(tail == self._older_tail != self._tail)

    def replayed(self, snapshot: Any) -> int:  # noqa: ARG002  # the protocol has it
        """Return 0: the index leads to the sample."""
        return 0

    def check(self, state: State, plan: Plan | None) -> None:
        """Reject a position that the epoch does not have, and a source state that does not fit.

        Raises:
            StateFormatError: the epoch does not have the position.
            StateMismatchError: this source has no method to restore the source state.
        """
        assert plan is not None  # an indexed source knows its length
        check_position(state, plan)
        check_remembered(state.mark.source, takes=self._own is not None)

    def adopt(self, state: State, global_batch: int) -> Mark:
        """Continue with the state's sampler, the tail of an earlier version, and what the source remembered.

        A finished epoch stays finished, even if it has more samples with this number of ranks.
        """
        if self._own is not None:
            self._own.go_to(state.mark.source)
        self._binding.adopt(state)
        tail = state.fingerprint["tail"]
        if self._keeps_tail(tail):
            self._tail, self._facts = tail, None
        cursor = state.mark.cursor
        if self.plan(state.global_batch, state.world_size).finished(cursor):
            plan = self.plan(global_batch)
            if not plan.finished(cursor):
                return state.mark._replace(cursor=Cursor(cursor.epoch, plan.end, cursor.step))
        return state.mark

    def plan(self, global_batch: int, ranks: int | None = None) -> Schedule:
        """Return how the epochs are divided into batches, with a number of ranks or the present one."""
        if self._tail not in {"pad_ranks", "drop_ranks"}:
            return Schedule(self.sampler.length, global_batch, self._tail)
        return Schedule(self.sampler.length, global_batch, self._tail, self.world().size if ranks is None else ranks)

    def finished(self, cursor: Cursor, global_batch: int) -> bool:
        """Return whether no batch of the cursor's epoch is left."""
        return self.plan(global_batch).finished(cursor)

    def following(self, cursor: Cursor, global_batch: int) -> Cursor:
        """Return where the epoch after the cursor's starts."""
        return self.plan(global_batch).following(cursor)

    def world(self) -> World:
        """Return the world that was passed, or else the current one."""
        return self._options.find_world()

    def past(self, mark: Mark) -> None:
        """Return None: no epoch depends on the ones before."""

    def canary(self) -> None:
        """Return None: the index identifies the sample."""
        return

    def source_now(self, source: SourceState | None) -> SourceState | None:
        """Return what the source remembers now, if it is at this position."""
        return source if self._own is None else self._own.now(source)

    def begins_with(self, source: SourceState | None) -> None:  # the protocol has it
        """Return None: evaluation does not change what its dataset remembers, because training may share it."""

    def source_state(self, *, asked: bool = True) -> SourceState | None:  # noqa: ARG002  # the protocol has it
        """Return what the source remembers after the last batch; None if the position is enough."""
        return None if self._own is None else self._own.state()

    def state_before(self, cursor: Cursor) -> tuple[SourceState | None, None]:  # noqa: ARG002  # the protocol has it
        """Return what the source remembered before the last batch."""
        return None if self._own is None else self._own.before(), None

    def leave(self, mark: Mark, global_batch: int) -> SourceState | None:  # noqa: ARG002  # the protocol has it
        """Return what the source remembers at a mark: the next epoch changes nothing about it."""
        return mark.source

    def open(self, mark: Mark, global_batch: int) -> Iterator[tuple[Any, Cursor]]:
        """Yield the rest of the mark's epoch: batches, each with the cursor after it."""
        world = self._options.find_world()
        self._binding.open(global_batch)
        self._tell_length()
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
                    raise BackendError(f"the backend {self.backend.kind!r} yielded more batches than were requested.")
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

    def _tell_length(self) -> None:
        """Compare the number of samples with what it was.

        Warns:
            PromiseWarning: it has changed.
        """
        source = self.inside.shows.get("dataset")
        before, self._counted = self._counted, length_or_none(source)
        if self._counted != before and not self._options.evaluation:
            warn(_grown(qualname_of(type(source)), before, self._counted, self.backend.length), PromiseWarning)

    def _read(self, mark: Mark, requests: Iterator[Request]) -> Iterator[Any]:
        """Read with the settings that the mark's epoch started with; the current ones are for later epochs."""
        in_force = mark.in_force
        now = None if self._settings is None else self._settings.settings()
        if self._settings is None or in_force is None or now is None or now == in_force:
            return self.backend.read(requests)
        self._settings.set_settings(in_force)
        try:
            return self.backend.read(requests)
        finally:
            self._settings.set_settings(now)

    def sample_indices(self, cursor: Cursor, plan: Plan, world: World) -> list[int]:
        """Return which samples a rank gets in the batch after the cursor, without reading any."""
        order = self._order_of(self.plan(plan.global_batch), world)
        return (order if plan == order.plan else order.changed(plan)).next_indices(cursor, world)

    def _order_of(self, plan: Plan, world: World) -> Order:
        """Return the order under a plan: the one that workers have already, unless plan or sampler changed."""
        seed, keyed = self._options.stream_seed, self._randomness in KEYED
        if self.interleaved:  # made for a fixed number of ranks, and not sent to workers
            return Interleaved(self.sampler, plan, seed, keyed=keyed, ranks=world.size)
        if self._order is None:
            self._order = Order(self.sampler, plan, seed, keyed=keyed)
        elif plan != self._order.plan or self.sampler is not self._order.sampler:
            self._order = self._order.changed(plan, self.sampler)
        return self._order


def _grown(name: str, before: int | None, now: int | None, length: int) -> str:
    return (
        f"the number of samples of {name} has changed since the last epoch.\n  then: {before}\n  now:  {now}\n"
        f"This Loader still reads the first {length} samples, as when it was wrapped. To read the others, create a new "
        "Loader and continue with its seek(epoch=...). Or pass the DataLoader a custom sampler, which determines the "
        "samples of each epoch."
    )


def _check_last(plan: Plan, cursor: Cursor, world: World) -> None:
    """Reject a last batch that would leave a rank without samples, so the other ranks would wait for it."""
    if (last := plan.smallest(cursor)) < world.size:
        raise ConfigurationError(
            f"the last global batch of the epoch has {last} samples, fewer than the {world.size} ranks.\n"
            "A rank would get no batch and the others would wait for it. "
            'Use tail="drop", "pad", "pad_ranks" or "carry", or drop_last=True in the DataLoader.'
        )


def by_epoch(sampler: Sampler, source: Any) -> Sampler:
    """Return the order with the epoch in its indices, if the samples of a source differ in each epoch."""
    method = ask(type(source), "resumable_epochs")
    epochs: Sampler = sampler if method is None else method(source, sampler)
    return epochs


def _spec_of(state: Saved) -> dict[str, Any]:
    prefix = "sampler."
    return {name.removeprefix(prefix): value for name, value in state.fingerprint.items() if name.startswith(prefix)}


class SamplerResolution:
    """Binds a sampler once: when the stream first opens, or a state is loaded. Until then, it fits the current ranks.

    Args:
        sampler: as passed.
        asked: returns the samples per step that this run would start with.
    """

    def __init__(self, sampler: Sampler, asked: Callable[[], int]) -> None:
        self._asked = asked
        self._open = sampler if offers(sampler, Bindable) else None  # checked once, because that takes 20 µs
        self._bound = sampler if self._open is None else None
        self._for_now: tuple[int, Sampler] | None = None
        self._doubted = False

    @property
    def sampler(self) -> Sampler:
        """The sampler, completely bound."""
        if self._bound is not None:
            return self._bound
        global_batch = self._asked()
        if self._for_now is None or self._for_now[0] != global_batch:
            assert self._open is not None
            self._for_now = global_batch, self._open.bound_to(global_batch)
        return self._for_now[1]

    def like(self, state: Saved) -> Sampler:
        """Return the sampler from a state, if the state specifies it; else the current one."""
        return self._said_by(state) or self.sampler

    def adopt(self, state: Saved) -> None:
        """Continue with the sampler from a state, if the state specifies it."""
        self._bound = self._said_by(state) or self._bound

    def continuation(self, state: Saved, cursor: Cursor) -> Continuation | None:
        """Return what differs from the mixture of a state, if only samples after its position do."""
        sampler = self.like(state)
        if not offers(sampler, Continuable):
            return None
        spec = _spec_of(state)
        return None if sampler.spec() == spec else sampler.continuation(spec, cursor.epoch, cursor.position)

    def _said_by(self, state: Saved) -> Sampler | None:
        if self._open is None:
            return None
        bound = self._open.bound_as(_spec_of(state))
        return None if bound is self._open else bound

    def open(self, global_batch: int) -> None:
        """Bind the sampler to the global batch of the first opening.

        Warns:
            ShuffleWarning: it shuffles too little for the batch.
        """
        if self._open is None:
            return
        bound = self._bound or self._open.bound_to(global_batch)
        self._bound = bound
        if not self._doubted and offers(bound, Bindable) and (doubt := bound.doubt(global_batch)):
            self._doubted = True
            warnings.warn(doubt, ShuffleWarning, stacklevel=2)
