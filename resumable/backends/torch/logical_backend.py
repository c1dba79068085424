"""Iterable-style datasets as a fixed number of logical streams, whatever the numbers of workers and ranks (`streams`).

The streams are what workers are without it: the dataset sees their numbers, each has keys and a state of its own, and
their batches come in turn. So a state of `N` workers goes on as one of `N` streams.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from resumable._order.world import World
from resumable.backends.torch.dealt_batches import DealtBatches, check_even, check_here
from resumable.backends.torch.engine import Engine, WorkerSetup
from resumable.backends.torch.logical_streams import LogicalStreams, only_items
from resumable.backends.torch.stream import Batches, TorchStreamBackend
from resumable.backends.torch.worker_states import StreamPlan, WorkerState
from resumable.errors import UnevenBatchError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.data import DataLoader

    from resumable._options import Options

__all__ = ["LogicalStreamBackend"]


class LogicalStreamBackend(TorchStreamBackend):
    """Batches of a `DataLoader` over an `IterableDataset` that is read as `options.streams` streams.

    Args:
        loader: the user's.
        options: those of `TorchStreamBackend`, and the number of streams.
    """

    resets_each_epoch = True

    def __init__(self, loader: DataLoader[Any], options: Options) -> None:
        super().__init__(loader, options)
        assert options.streams is not None
        self._streams = options.streams
        known = {name: value for name, value in self.identity.items() if name != "workers"}
        self.identity = {**known, "streams": self._streams}
        self._running: Batches | DealtBatches | None = None
        self.traits = replace(self.traits, needs_shard=False)
        self.inside = replace(self.inside, restarts_workers=False)
        self.dealt_round_robin = options.shard is None
        # Workers' states know the same streams, unless the dataset has a state: there it may continue over epochs.
        self.alternate_identity = None if self._stateful else {**known, "workers": self._streams}

    def open(self, epoch: int) -> Iterator[Any]:
        """Begin an epoch, with fresh copies of the dataset."""
        went_on = self._running is not None and self._running.ended_before(epoch)
        plan = StreamPlan(epoch, 0, [WorkerState()] * self._streams)
        return self._go(plan, 0, reuse=went_on and self._loader.persistent_workers)

    def snapshot(self) -> Any:
        """Return the states of all streams after the batch that was yielded last; None before the first."""
        if self._running is None:
            return None
        if self._running.ended:
            return {"next": 0, "workers": [WorkerState().as_dict() for _ in range(self._streams)]}
        return self._running.snapshot()

    def restore(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        """Give every stream its state back, and go on with the one whose turn it is."""
        states = [WorkerState.from_dict(values) for values in snapshot["workers"]]
        if len(states) != self._streams:
            raise ValueError(f"it is of {len(states)} streams, and there are {self._streams}")
        number, world = sum(state.batches for state in states), self._world()
        if world.size > 1:
            check_even(states, number)
        if self._stateful:
            check_here(states, self._own(world))
        return self._go(StreamPlan(epoch, snapshot["next"], states), number, reuse=False)

    def _go(self, plan: StreamPlan, number: int, *, reuse: bool) -> Iterator[Any]:
        world = self._world()
        if not reuse or self._engine is None:
            self._engine = self._make_engine(plan)
        items = only_items(self._engine.run(None, seed=self._options.stream_seed, epoch=plan.epoch))
        batches = Batches(items, plan, self._meter, looks=len(self._own(world)) if self._options.compares_data else 0)
        if world.size == 1:
            self._running = batches
        else:
            self._running = DealtBatches(batches, world, self._streams, number)
        return self._running

    def _make_engine(self, plan: StreamPlan) -> Engine:
        rank = (self._options.find_world().rank,) if self._options.shard is False else ()
        streams = LogicalStreams(self._loader, plan, self._options, rank, self._own(self._world()))
        setup = WorkerSetup(None, stacks=self._options.stall_after is not None)
        return Engine(self._loader, streams, setup, meter=self._meter)

    def _world(self) -> World:
        """Return the ranks to which the streams are dealt.

        Raises:
            UnevenBatchError: they cannot have as many each.
        """
        world = self._options.find_world() if self._options.shard is None else World()
        if self._streams % world.size:
            raise UnevenBatchError(
                f"{self._streams} streams cannot be dealt evenly to {world.size} ranks.\n"
                "Some ranks would have more batches than others. Start with a number of streams that the numbers of "
                "ranks divide, such as 16 or 60; or give wrap(..., shard=True), by which every rank reads all streams."
            )
        return world

    def _own(self, world: World) -> range:
        return range(world.rank, self._streams, world.size)
