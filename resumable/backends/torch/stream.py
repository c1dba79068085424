"""Iterable-style datasets in a `DataLoader`, with any number of workers.

Each batch comes with the number of the worker that made it and, where the dataset has `state_dict` and
`load_state_dict`, with the dataset's state in that worker. So the state of the whole is: for each worker, how many of
its batches were handed over and its state behind the last of them, and the worker whose turn it is. On resume each
worker gets its own part back; without states, it draws and drops as many samples, and ships none of them.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from resumable.backends.torch.engine import Engine, WorkerSetup
from resumable.backends.torch.parts import Part, StreamPlan
from resumable.backends.torch.worker_stream import WorkerStream, has_state
from resumable.naming import name_of
from resumable.protocols import Capabilities

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.data import DataLoader

    from resumable.options import Options

__all__ = ["TorchStreamBackend"]

_HINTS = dict.fromkeys(
    ("batch", "drop_last", "workers"), "Make the DataLoader with the options that the run was started with."
)


class TorchStreamBackend:
    """Batches of a `DataLoader` over an `IterableDataset`.

    Args:
        loader: the user's.
        options: seed, randomness, shard and identity.
    """

    kind = "torch-iterable"

    def __init__(self, loader: DataLoader[Any], options: Options) -> None:
        self._loader, self._options = loader, options
        self._workers = max(loader.num_workers, 1)
        self._keeps = loader.num_workers == 0 or loader.persistent_workers  # the dataset lives on between epochs
        self._stateful = has_state(loader.dataset)
        self._batches: _Batches | None = None
        self._rotated = False
        self._engine: Engine | None = None
        self.capabilities = Capabilities(
            hints=_HINTS,
            length=len(loader) if hasattr(loader.dataset, "__len__") else None,
            keyed=True,
            needs_shard=True,
            places=_own_places,
            count=_count,
        )
        self.identity = {
            "source": name_of(loader.dataset, options.identity),
            "batch": loader.batch_size or 0,
            "drop_last": loader.drop_last,
            "workers": self._workers,
        }

    def open(self, epoch: int) -> Iterator[Any]:
        """Begin an epoch."""
        # Datasets that live on know the epoch that they ended only; any other epoch but the next has to begin anew.
        went_on = self._keeps and self._batches is not None and self._batches.ended_before(epoch)
        parts = [Part()] * self._workers
        if went_on and self._stateful:
            parts = [Part.from_dict(values) for values in self.snapshot()["workers"]]
        elif self._stateful and self._batches is not None and not self._loader.num_workers:
            # An epoch was left: the dataset in this process goes on from there, and not from what was read ahead of it.
            parts = [Part(state=part.get("state")) for part in self._batches.parts()]
        # Rotated workers would begin the epoch with another one than the first; new ones get the parts.
        return self._begin(StreamPlan(epoch, 0, parts), reuse=went_on and not self._rotated)

    def snapshot(self) -> Any:
        """Return the parts of all workers behind the batch that was yielded last."""
        if self._batches is not None and not self._batches.ended:
            return self._batches.snapshot()
        if not (self._stateful and self._keeps):
            return None
        if self._batches is not None:
            return {"next": 0, "workers": [{**part, "batches": 0, "ended": False} for part in self._batches.parts()]}
        if self._loader.num_workers:
            return None
        return {"next": 0, "workers": [Part(state=copy.deepcopy(self._loader.dataset.state_dict())).as_dict()]}  # type: ignore[attr-defined]

    def restore(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        """Give every worker its part back, and go on with the worker whose turn it is."""
        parts = [Part.from_dict(values) for values in snapshot["workers"]]
        return self._begin(StreamPlan(epoch, snapshot["next"], parts), reuse=False)

    def _begin(self, plan: StreamPlan, *, reuse: bool) -> Iterator[Any]:
        if not reuse or self._engine is None:
            self._engine = self._make_engine(plan)
        self._rotated = plan.turn != 0
        running = self._engine.run(None, seed=self._options.seed, epoch=plan.epoch)
        self._batches = _Batches(running, plan)
        return self._batches

    def _make_engine(self, plan: StreamPlan) -> Engine:
        rank = (self._options.find_world().rank,) if self._options.shard is False else ()
        stream = WorkerStream(self._loader, plan, self._options.randomness or "sample", self._options.seed, rank)
        return Engine(self._loader, stream, WorkerSetup(self._loader.worker_init_fn, plan.turn))


class _Batches:
    """Batches of an epoch; keeps the books on which worker made which."""

    def __init__(self, running: Iterator[Any], plan: StreamPlan) -> None:
        self._running = running
        self._parts = list(plan.parts)
        self._turn = plan.turn
        self._epoch = plan.epoch
        self.ended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while True:
            try:
                worker, part, batch = next(self._running)
            except StopIteration:
                self.ended = True
                raise
            self._parts[worker] = Part.from_dict(part)
            self._turn = (worker + 1) % len(self._parts)
            if batch:
                return batch[0]

    def ended_before(self, epoch: int) -> bool:
        """Tell whether these were all the batches of the epoch just before."""
        return self.ended and epoch == self._epoch + 1

    def parts(self) -> list[dict[str, Any]]:
        """Return every worker's part."""
        return [part.as_dict() for part in self._parts]

    def snapshot(self) -> Any:
        """Return every worker's part, and whose turn it is."""
        return {"next": self._turn, "workers": self.parts()}

    def close(self) -> None:
        """Stop the workers."""
        self._running.close()  # type: ignore[attr-defined]  # a generator


def _own_places(snapshot: Any) -> Any:
    """Return what of a snapshot is not a dataset's own state."""
    return [snapshot["next"], [[part["batches"], part["ended"]] for part in snapshot["workers"]]]


def _count(snapshot: Any) -> int:
    """Return how many batches were given before a snapshot, by all workers together."""
    return sum(part["batches"] for part in snapshot["workers"])
