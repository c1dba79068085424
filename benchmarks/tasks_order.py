"""Orders without data: how fast they yield sample indices, their memory, and how even batches are."""

from __future__ import annotations

import gc
import random
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import RandomSampler

from benchmarks.tasks_own import peak, resident
from resumable._fetch.order import Order
from resumable._order.cursor import Cursor
from resumable._order.plan import Schedule
from resumable._order.world import World
from resumable.samplers import Blocks, Shuffle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Drawn"]

_BATCH = 256
_STRATA = 64
_SHARD = 1000


class Drawn:
    """Generates sample indices in an order.

    Args:
        name: "blocks", "shuffle", "torch" or "buffer".
        length: number of samples.
        options: of `Blocks`, or `size` of the buffer.
    """

    def __init__(self, name: str, length: int, **options: Any) -> None:
        self._name, self._options = name, options
        for _ in islice(self._start(1000), 10):
            pass
        gc.collect()
        before, top_before = resident(), peak()
        self._length, self._indices = length, self._start(length)
        for _ in islice(self._indices, 50_000):
            pass
        top = peak()
        self._grown = max((top if top > top_before else resident()) - before, 0.0)

    def grown(self) -> float:
        """Return the peak memory growth in megabytes at the start of an epoch."""
        return self._grown

    def turn(self, items: int) -> float:
        """Return the processor seconds per item of the next items."""
        begin = time.process_time()
        for _ in islice(self._indices, items):
            pass
        return (time.process_time() - begin) / items

    def unevenness(self) -> float:
        """Return chi-square per degree of freedom of the strata of a batch, over an epoch of data sorted by stratum."""
        order = np.fromiter(self._start(self._length), np.int64)[: self._length // _BATCH * _BATCH].reshape(-1, _BATCH)
        counts = np.stack([np.bincount(row * _STRATA // self._length, minlength=_STRATA) for row in order])
        share = _BATCH / _STRATA
        return float(((counts - share) ** 2 / share).sum(axis=1).mean() / (_STRATA - 1))

    def _start(self, length: int) -> Iterator[int]:
        if self._name == "torch":
            return iter(RandomSampler(range(length)))
        if self._name == "buffer":
            return _buffered(_shards(length), **self._options)
        sampler = Blocks(length, **self._options) if self._name == "blocks" else Shuffle(length)
        order, world = Order(sampler, Schedule(length, _BATCH, "partial"), 0, keyed=False), World()
        requests = order.rest_of_epoch(Cursor(), world, _Nothing())  # type: ignore[arg-type]  # nobody asks for cursors
        return (index for request in requests for index in order.indices(request).tolist())


class _Nothing:
    def append(self, cursor: Cursor) -> None:
        """Drop a cursor."""


def _shards(length: int) -> Iterator[int]:
    """Yield the samples of shards of 1000, with the shards in random order."""
    for shard in np.random.default_rng(0).permutation(-(-length // _SHARD)):
        yield from range(int(shard) * _SHARD, min((int(shard) + 1) * _SHARD, length))


def _buffered(indices: Iterable[int], size: int) -> Iterator[int]:
    """Sample from a buffer that is kept full, like the shuffles of webdataset and of Hugging Face's streams."""
    drawn, buffer = random.Random(0), []  # a shuffle
    for index in indices:
        buffer.append(index)
        if len(buffer) >= size:
            place = drawn.randrange(size)
            buffer[place], buffer[-1] = buffer[-1], buffer[place]
            yield buffer.pop()
    drawn.shuffle(buffer)
    yield from buffer
