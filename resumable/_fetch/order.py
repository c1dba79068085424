"""Which samples and keys are at which positions. A small object, copied to the worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._randomness.keyed import BlockCache
from resumable._randomness.keys import SampleKeys
from resumable.protocols import Request

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterator

    from resumable._order.cursor import Cursor
    from resumable._order.plan import Plan
    from resumable._order.world import World
    from resumable._randomness.keyed import IntArray, Words
    from resumable.samplers import Sampler

__all__ = ["Interleaved", "Order"]


_NO_KEYS = np.empty(0, np.uint64)


class Order:
    """Divides epochs into requests, and resolves them to sample indices and keys, in any process.

    It has no reference to the backend, so a worker process that holds an iterator over requests does not keep the
    whole loader alive. Pickling drops its caches.

    Args:
        sampler: maps positions to sample indices.
        plan: divides the epochs into global batches.
        seed: of the keys.
        keyed: whether every sample gets a key.
        version: number of the plan; each request says which plan made it.

    Attributes:
        travels: worker processes get a copy; otherwise they get requests that list their samples.
    """

    travels = True

    def __init__(self, sampler: Sampler, plan: Plan, seed: int, *, keyed: bool = True, version: int = 0) -> None:
        self.plan, self.version = plan, version
        self.sampler, self._seed, self._keyed = sampler, seed, keyed
        self._begin_caches()

    def _begin_caches(self) -> None:
        # One assignment, because other threads may read them.
        self._last = self._before = _EpochOrder(self.sampler, self._seed, 0, self.plan.positions(0))

    def changed(self, plan: Plan, sampler: Sampler | None = None, version: int | None = None) -> Order:
        """Return the order with a different plan or sampler, and the next version or the one passed."""
        version = self.version + 1 if version is None else version
        return type(self)(sampler or self.sampler, plan, self._seed, keyed=self._keyed, version=version)

    @property
    def samples(self) -> tuple[int, int, bool]:
        """A value that is equal for orders of this process that differ only in their plan."""
        return id(self.sampler), self._seed, self._keyed

    def rest_of_epoch(self, cursor: Cursor, world: World, asked: deque[Cursor]) -> Iterator[Request]:
        """Yield a request for each batch that is left in the cursor's epoch.

        Args:
            cursor: where to start.
            world: whose share of each global batch.
            asked: gets the cursor after each requested batch.
        """
        plan, epoch, rank, version = self.plan, cursor.epoch, world.rank, self.version
        new = tuple.__new__  # takes half the time of calling the class, once per batch
        while not plan.finished(cursor):
            after = plan.advance(cursor)
            start, stop = self.share(cursor, after, world)
            asked.append(after)
            yield new(Request, (epoch, cursor.step, rank, start, stop, version, self))
            cursor = after

    def share(self, before: Cursor, after: Cursor, world: World) -> tuple[int, int]:
        """Return start and stop of a request for a rank's share of the global batch between two cursors."""
        return self.plan.share(before, after, world)

    def next_indices(self, cursor: Cursor, world: World) -> list[int]:
        """Return which samples a rank gets in the batch after the cursor."""
        start, stop = self.share(cursor, self.plan.advance(cursor), world)
        request = Request(cursor.epoch, cursor.step, world.rank, start, stop, self.version, self)
        indices: list[int] = self.indices(request).tolist()
        return indices

    def indices(self, request: Request) -> IntArray:
        """Return the sample indices of a request."""
        epoch, _, _, start, stop, _, _ = request
        order = self._last if epoch == self._last.epoch else self._of(epoch)
        if stop <= order.length:
            return order.indices.take(start, stop)  # type: ignore[return-value]  # a sampler's
        pieces = self.plan.segments(epoch, start, stop)
        return np.concatenate([self._of(piece.epoch).indices.take(piece.start, piece.stop) for piece in pieces])

    def keys(self, request: Request) -> Words:
        """Return the keys of a request's samples."""
        if not self._keyed:
            return _NO_KEYS
        epoch, _, _, start, stop, _, _ = request
        order = self._last if epoch == self._last.epoch else self._of(epoch)
        if stop <= order.length:
            return order.keys.take(start, stop)  # type: ignore[return-value]  # words
        pieces = self.plan.segments(epoch, start, stop)
        parts = [(self._of(piece.epoch), piece.counter, piece.stop - piece.start) for piece in pieces]
        return np.concatenate([order.keys.take(counter, counter + size) for order, counter, size in parts])

    def batch_key(self, request: Request) -> int:
        """Return the key of a request's batch."""
        epoch = request.epoch
        return (self._last if epoch == self._last.epoch else self._of(epoch)).batch_key(request.start)

    def padding(self, request: Request) -> int:
        """Return how many samples of a request only fill up the batch."""
        return self.plan.padding(request.start, request.stop)

    def _of(self, epoch: int) -> _EpochOrder:
        for known in (self._last, self._before):
            if known.epoch == epoch:
                return known
        found = _EpochOrder(self.sampler, self._seed, epoch, self.plan.positions(epoch))
        self._before, self._last = self._last, found
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in {"_last", "_before"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin_caches()

    def __repr__(self) -> str:
        return f"<Order {self.version}: {self.sampler!r}>"


class _EpochOrder:
    """Sample indices and keys of one epoch, evaluated in cached blocks."""

    __slots__ = ("batch_key", "epoch", "indices", "keys", "length")

    def __init__(self, sampler: Sampler, seed: int, epoch: int, length: int) -> None:
        self.epoch, self.length = epoch, length
        keys = SampleKeys(seed, epoch)
        self.batch_key = keys.batch
        self.indices = BlockCache(lambda start, stop: sampler.indices(epoch, start, stop), sampler.length)
        self.keys = BlockCache(keys.samples, 1 << 62)


class Interleaved(Order):
    """Rank `r` of `W` gets the positions `r`, `r + W`, `r + 2W`... of each global batch.

    A request's `start` is the first of its positions, and `stop - start` their number. It stays in this process,
    because its sampler may keep whole permutations: worker processes get the samples in a list.

    Args:
        sampler: maps positions to sample indices.
        plan: divides the epochs into global batches.
        seed: of the keys, which depend on the positions, not on the rank.
        keyed: whether every sample gets a key.
        ranks: number of ranks, `W`.
    """

    travels = False

    def __init__(self, sampler: Sampler, plan: Plan, seed: int, *, keyed: bool = True, ranks: int) -> None:
        super().__init__(sampler, plan, seed, keyed=keyed)
        self._ranks = ranks

    def share(self, before: Cursor, after: Cursor, world: World) -> tuple[int, int]:
        """Return the first position of a rank in a global batch, and the same plus the number of its positions."""
        start = before.position + world.rank
        return start, start + max(0, -(-(after.position - start) // self._ranks))

    def indices(self, request: Request) -> IntArray:
        """Return the sample indices of a request."""
        return super().indices(self._from_first_to_last(request))[:: self._ranks]

    def keys(self, request: Request) -> Words:
        """Return the keys of a request's samples."""
        return super().keys(self._from_first_to_last(request))[:: self._ranks]

    def padding(self, request: Request) -> int:
        """Return how many samples of a request only fill up the batch."""
        return -(-super().padding(self._from_first_to_last(request)) // self._ranks)

    def _from_first_to_last(self, request: Request) -> Request:
        return request._replace(stop=request.start + max(0, (request.size - 1) * self._ranks + 1))
