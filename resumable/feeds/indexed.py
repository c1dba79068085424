"""The feed of indexed backends: our schedule and sampler say what to read."""

from __future__ import annotations

from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING, Any

from resumable.errors import BackendError, ConfigurationError
from resumable.feeds.requests import Requests
from resumable.protocols import capabilities_of
from resumable.schedule import Schedule, check_share, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable._state import Mark
    from resumable.cursor import Cursor
    from resumable.options import Options
    from resumable.protocols import IndexedBackend
    from resumable.randomness import Randomness
    from resumable.samplers import Sampler
    from resumable.schedule import Tail
    from resumable.world import World

__all__ = ["IndexedFeed"]


class IndexedFeed:
    """Requests of this rank for every global batch, computed from the position alone.

    Args:
        backend: reads the requests.
        sampler: maps positions to sample indices.
        tail: tail policy.
        randomness: mode, for the state.
        options: seed, world and the rule for uneven shares.
    """

    unit = "sample"

    def __init__(
        self, backend: IndexedBackend, sampler: Sampler, tail: Tail, randomness: Randomness, options: Options
    ) -> None:
        self.backend, self._sampler, self._tail = backend, sampler, tail
        self._randomness, self._options = randomness, options
        self.can = capabilities_of(backend)
        self._requests = Requests(sampler, options.seed, keyed=randomness == "sample")

    def facts(self) -> dict[str, Any]:
        """Return kind, identity, length, randomness, sampler and tail."""
        return self._facts

    @cached_property
    def _facts(self) -> dict[str, Any]:
        return {
            "backend.kind": self.backend.kind,
            **{f"backend.{name}": value for name, value in self.backend.identity.items()},
            "backend.length": self.backend.length,
            "randomness.mode": self._randomness,
            "randomness.seed": self._options.seed,
            **{f"sampler.{name}": value for name, value in self._sampler.spec().items()},
            "tail": self._tail,
        }

    def schedule(self, global_batch: int) -> Schedule:
        """Return the epoch's schedule."""
        return Schedule(self._sampler.length, global_batch, self._tail)

    def finished(self, cursor: Cursor, global_batch: int) -> bool:
        """Tell whether no batch of the cursor's epoch is left."""
        return self.schedule(global_batch).finished(cursor)

    def following(self, cursor: Cursor, global_batch: int) -> Cursor:
        """Return where the epoch after the cursor's begins."""
        return self.schedule(global_batch).following(cursor)

    def world(self) -> World:
        """Return the world that was given, or the one that is there now."""
        return self._options.find_world()

    def source_state(self, *, asked: bool = True) -> None:
        """Return None: the position says it all."""

    def leave(self, mark: Mark, global_batch: int) -> None:
        """Return None: the next epoch is just another number."""

    def open(self, mark: Mark, global_batch: int) -> Iterator[tuple[Any, Cursor]]:
        """Yield the rest of the mark's epoch: batches, each with the cursor after it."""
        schedule, world = self.schedule(global_batch), self._options.find_world()
        check_share(global_batch, world, uneven=self._options.uneven)
        self._check_last(schedule, mark.cursor, world)
        asked: deque[Cursor] = deque()
        batches = self.backend.read(self._requests.rest_of_epoch(schedule, mark.cursor, world, asked))
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

    def sample_indices(self, cursor: Cursor, schedule: Schedule, world: World) -> list[int]:
        """Tell which samples a rank gets in the batch after the cursor, without reading any."""
        start, stop = share(cursor.position, schedule.advance(cursor).position, world)
        indices: list[int] = self._requests.select(schedule, cursor.epoch, start, stop)[0].tolist()
        return indices

    def _check_last(self, schedule: Schedule, cursor: Cursor, world: World) -> None:
        """Refuse a last batch that would leave a rank without samples, and so the other ranks waiting for it."""
        last = max(schedule.length - cursor.position, 0) % schedule.global_batch
        if schedule.tail == "partial" and 0 < last < world.size:
            raise ConfigurationError(
                f"the last global batch of the epoch has {last} samples, fewer than the {world.size} ranks.\n"
                "A rank would get no batch and the others would wait for it. "
                'Use tail="drop", "pad" or "carry", or drop_last=True in the DataLoader.'
            )
