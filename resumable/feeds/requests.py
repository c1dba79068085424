"""What an indexed backend is asked for: the requests of one rank, computed from the position alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from resumable.keyed import BlockCache
from resumable.protocols import Request
from resumable.randomness import SampleKeys
from resumable.schedule import share

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterator

    from resumable.cursor import Cursor
    from resumable.samplers import Sampler
    from resumable.schedule import Schedule
    from resumable.world import World

__all__ = ["Requests"]

_NO_KEYS = np.empty(0, np.uint64)


class Requests:
    """Requests for any global batch of any epoch.

    It knows nothing of the backend, so that a worker process that holds an iterator over requests does not keep the
    whole loader alive by it.

    Args:
        sampler: maps positions to sample indices.
        seed: of the keys.
        keyed: give every sample a key; where nobody asks for them, they are left out.
    """

    def __init__(self, sampler: Sampler, seed: int, *, keyed: bool = True) -> None:
        self._sampler, self._seed, self._keyed = sampler, seed, keyed
        self._epochs: dict[int, _EpochOrder] = {}

    def rest_of_epoch(
        self, schedule: Schedule, cursor: Cursor, world: World, asked: deque[Cursor]
    ) -> Iterator[Request]:
        """Yield a request for each batch that is left in the cursor's epoch.

        Args:
            schedule: cuts the epoch into global batches.
            cursor: where to begin.
            world: whose share of each global batch.
            asked: gets the cursor behind each batch that was asked for.
        """
        epoch, batch_key = cursor.epoch, self._order(cursor.epoch).batch_key
        while not schedule.finished(cursor):
            after = schedule.advance(cursor)
            start, stop = share(cursor.position, after.position, world)
            indices, keys = self.select(schedule, epoch, start, stop)
            asked.append(after)
            padding = max(stop - max(start, schedule.length), 0) if schedule.tail == "pad" else 0
            yield Request(epoch, cursor.step, world.rank, indices, keys, batch_key(start), padding)
            cursor = after

    def select(self, schedule: Schedule, epoch: int, start: int, stop: int) -> tuple[Any, Any]:
        """Return the sample indices and keys of the positions `start..stop-1`, which may go past the epoch's length."""
        if stop <= schedule.length:
            return self._order(epoch).take(start, stop, start)
        parts = [
            self._order(piece.epoch).take(piece.start, piece.stop, piece.counter)
            for piece in schedule.segments(epoch, start, stop)
        ]
        return np.concatenate([indices for indices, _ in parts]), np.concatenate([keys for _, keys in parts])

    def _order(self, epoch: int) -> _EpochOrder:
        if epoch not in self._epochs:
            for old in sorted(self._epochs)[:-1]:
                del self._epochs[old]
            self._epochs[epoch] = _EpochOrder(self._sampler, self._seed, epoch, keyed=self._keyed)
        return self._epochs[epoch]


class _EpochOrder:
    """Sample indices and keys of one epoch, evaluated in cached blocks."""

    def __init__(self, sampler: Sampler, seed: int, epoch: int, *, keyed: bool) -> None:
        keys = SampleKeys(seed, epoch)
        self.batch_key = keys.batch
        self._indices = BlockCache(lambda start, stop: sampler.indices(epoch, start, stop), sampler.length)
        self._keys = BlockCache(keys.samples, 1 << 62) if keyed else None

    def take(self, start: int, stop: int, counter: int) -> tuple[Any, Any]:
        """Return the sample indices of the positions `start..stop-1`, and their keys, counted from `counter`."""
        indices = self._indices.take(start, stop)
        return indices, _NO_KEYS if self._keys is None else self._keys.take(counter, counter + stop - start)
