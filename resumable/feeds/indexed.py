"""The feed of indexed backends: our schedule and sampler say what to read."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable.backend import Request
from resumable.errors import BackendError, ConfigurationError
from resumable.keyed import BlockCache
from resumable.randomness import SampleKeys
from resumable.schedule import Schedule, check_share, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable.backend import IndexedBackend
    from resumable.cursor import Cursor
    from resumable.options import Options
    from resumable.randomness import Randomness
    from resumable.samplers import Sampler
    from resumable.schedule import Segment, Tail
    from resumable.state import Mark
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

    def __init__(
        self, backend: IndexedBackend, sampler: Sampler, tail: Tail, randomness: Randomness, options: Options
    ) -> None:
        self._backend, self._sampler, self._tail = backend, sampler, tail
        self._randomness, self._options = randomness, options
        self._epochs: dict[int, _EpochOrder] = {}

    def facts(self) -> dict[str, Any]:
        return {
            "backend.kind": self._backend.kind,
            **{f"backend.{name}": value for name, value in self._backend.identity.items()},
            "backend.length": self._backend.length,
            "randomness.mode": self._randomness,
            "randomness.seed": self._options.seed,
            **{f"sampler.{name}": value for name, value in self._sampler.spec().items()},
            "tail": self._tail,
        }

    def schedule(self, global_batch: int) -> Schedule:
        return Schedule(self._sampler.length, global_batch, self._tail)

    def finished(self, cursor: Cursor, global_batch: int) -> bool:
        return self.schedule(global_batch).finished(cursor)

    def following(self, cursor: Cursor, global_batch: int) -> Cursor:
        return self.schedule(global_batch).following(cursor)

    def world(self) -> World:
        return self._options.find_world()

    def native(self) -> None:
        return None

    def open(self, mark: Mark, global_batch: int) -> Iterator[tuple[Any, Cursor]]:
        schedule, world = self.schedule(global_batch), self._options.find_world()
        check_share(global_batch, world, uneven=self._options.uneven)
        self._check_last(schedule, mark.cursor, world)
        asked: deque[Cursor] = deque()
        batches = self._backend.read(self._requests(schedule, mark.cursor, world, asked))
        try:
            for batch in batches:
                if not asked:
                    raise BackendError(
                        f"the backend {self._backend.kind!r} yielded more batches than it was asked for."
                    )
                yield batch, asked.popleft()
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()
        if asked:
            raise BackendError(
                f"the backend {self._backend.kind!r} ended {len(asked)} batches early, at {asked[0]}.\n"
                "Its read() must yield one batch per request."
            )

    def sample_indices(self, cursor: Cursor, schedule: Schedule, world: World) -> list[int]:
        """Tell which samples a rank gets in the batch after the cursor, without reading any."""
        start, stop = share(cursor.position, schedule.advance(cursor).position, world)
        return self._select(schedule, cursor.epoch, start, stop)[0].tolist()

    def _requests(self, schedule: Schedule, cursor: Cursor, world: World, asked: deque[Cursor]) -> Iterator[Request]:
        while not schedule.finished(cursor):
            after = schedule.advance(cursor)
            start, stop = share(cursor.position, after.position, world)
            indices, keys = self._select(schedule, cursor.epoch, start, stop)
            batch_key = self._order(cursor.epoch).keys.batch(start)
            asked.append(after)
            yield Request(cursor.epoch, cursor.step, world.rank, indices, keys, batch_key)
            cursor = after

    def _select(self, schedule: Schedule, epoch: int, start: int, stop: int) -> tuple[Any, Any]:
        parts = [self._order(piece.epoch).take(piece) for piece in schedule.segments(epoch, start, stop)]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([indices for indices, _ in parts]), np.concatenate([keys for _, keys in parts])

    def _order(self, epoch: int) -> _EpochOrder:
        if epoch not in self._epochs:
            for old in sorted(self._epochs)[:-1]:
                del self._epochs[old]
            self._epochs[epoch] = _EpochOrder(self._sampler, self._options.seed, epoch)
        return self._epochs[epoch]

    def _check_last(self, schedule: Schedule, cursor: Cursor, world: World) -> None:
        """Refuse a last batch that would leave a rank without samples, and so the other ranks waiting for it."""
        last = max(schedule.length - cursor.position, 0) % schedule.global_batch
        if schedule.tail == "partial" and 0 < last < world.size:
            raise ConfigurationError(
                f"the last global batch of the epoch has {last} samples, fewer than the {world.size} ranks.\n"
                "A rank would get no batch and the others would wait for it. "
                'Use tail="drop", "pad" or "carry", or drop_last=True in the DataLoader.'
            )


class _EpochOrder:
    """Sample indices and keys of one epoch, evaluated in cached blocks."""

    def __init__(self, sampler: Sampler, seed: int, epoch: int) -> None:
        self.keys = SampleKeys(seed, epoch)
        self._indices = BlockCache(lambda start, stop: sampler.indices(epoch, start, stop), sampler.length)
        self._keys = BlockCache(self.keys.samples, 1 << 62)

    def take(self, piece: Segment) -> tuple[Any, Any]:
        count = piece.stop - piece.start
        return self._indices.take(piece.start, piece.stop), self._keys.take(piece.counter, piece.counter + count)
