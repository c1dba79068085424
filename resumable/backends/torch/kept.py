"""Map-style datasets with a sampler or batch sampler of the user's own: its order is kept.

A sampler with a state resumes by that, taken after each batch of indices, as the workers read ahead. Any other one is
replayed: its indices are drawn again, and no data is read. A sampler that is not told the epoch by `set_epoch` is
replayed from epoch 0, as its order may depend on what it gave before.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from resumable.backend import Request
from resumable.backends.torch.engine import Engine, WorkerSetup
from resumable.backends.torch.indexed import RequestDataset
from resumable.backends.torch.user_order import Drawn, UserOrder
from resumable.naming import name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.data import DataLoader

    from resumable.options import Options
    from resumable.reading import Reader

__all__ = ["KeptOrderBackend"]


class KeptOrderBackend:
    """Reads the batches that a user's sampler asks for.

    Args:
        loader: the user's.
        reader: reads a request where the samples are read.
        options: seed, world, randomness and identity.
    """

    kind = "torch-map-own-order"
    keyed = True
    needs_shard = True

    def __init__(self, loader: DataLoader[Any], reader: Reader, options: Options) -> None:
        self._engine = Engine(loader, RequestDataset(reader), WorkerSetup(loader.worker_init_fn))
        self._order = UserOrder(loader, options)
        self._options = options
        self._batches: _Batches | None = None
        self.length = self._order.length
        self.identity = {
            "source": name_of(loader.dataset, options.identity),
            "samples": len(loader.dataset),  # type: ignore[arg-type]  # map-style has a length
            **self._order.identity,
        }

    def open(self, epoch: int) -> Iterator[Any]:
        """Begin an epoch."""
        return self._begin(epoch, self._order.draw(epoch))

    def snapshot(self) -> Any:
        """Return the sampler's state behind the batch that was yielded last; None where it has none."""
        if not self._order.stateful:
            return None
        if self._batches is None:
            return {"order": self._order.state(), "samples": 0, "ended": False}
        return self._batches.snapshot()

    def restore(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        """Give the sampler its state back, and go on."""
        drawn = self._order.restore(epoch, snapshot["order"], snapshot["samples"])
        return self._begin(epoch, iter(()) if snapshot.get("ended") else drawn, snapshot)

    def _begin(self, epoch: int, drawn: Iterator[Drawn], snapshot: Any = None) -> Iterator[Any]:
        rank = self._options.find_world().rank
        self._batches = _Batches(self._engine, drawn, self._options.seed, epoch, rank, snapshot)
        return self._batches


class _Batches:
    """Batches of an epoch, each with what the sampler's state was when its indices were drawn."""

    def __init__(  # noqa: PLR0913  # what an epoch is made of
        self, engine: Engine, drawn: Iterator[Drawn], seed: int, epoch: int, rank: int, snapshot: Any
    ) -> None:
        self._engine, self._drawn, self._seed, self._epoch, self._rank = engine, drawn, seed, epoch, rank
        self._ahead: deque[Drawn] = deque()
        self._snapshot = snapshot
        self._skipped = 0
        self._over = False
        self._reading: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._reading is None:
            requests = _requests(self._drawn, self._ahead, self._epoch, self._skipped, self._rank)
            self._reading = self._engine.run(requests, seed=self._seed, epoch=self._epoch)
        try:
            batch = next(self._reading)
        except StopIteration:
            self._over = True
            raise
        self._pass(self._ahead.popleft())
        return batch

    def skip(self, count: int) -> None:
        """Draw the indices of `count` batches and read none of them."""
        for _ in range(count):
            self._pass(next(self._drawn))
            self._skipped += 1

    def snapshot(self) -> Any:
        """Return the sampler's state behind the last batch; behind the end, that from which the next epoch begins."""
        if self._over and self._snapshot is not None:
            return {**self._snapshot, "samples": 0, "ended": False}
        return self._snapshot

    def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.close()  # type: ignore[attr-defined]  # a generator

    def _pass(self, drawn: Drawn) -> None:
        self._snapshot = {"order": drawn.state, "samples": drawn.samples, "ended": drawn.ended}


def _requests(drawn: Iterator[Drawn], ahead: deque[Drawn], epoch: int, step: int, rank: int) -> Iterator[Request]:
    for number, batch in enumerate(drawn, start=step):
        ahead.append(batch)
        yield Request(epoch, number, rank, batch.indices, batch.keys, batch.batch_key)
