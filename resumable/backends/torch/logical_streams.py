"""Iterable-style datasets as a fixed number of logical streams, whatever the numbers of workers and ranks (`streams`).

The streams take over the role of workers. The dataset sees their numbers, each stream iterates over a copy of the
dataset with its own keys and state, and their batches alternate. So a state of `N` workers resumes with `N` streams.
A worker rotates through its streams, one batch from each, so the order is the same for any number of workers:

    worker 0    0  2  4  0  2  4 ...
    worker 1    1  3  -  1  3  - ...     a worker with fewer streams yields nothing instead
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from resumable._fetch.failures import sending
from resumable._order.world import World
from resumable._randomness.keyed import derive
from resumable._randomness.keys import isolated, reseed
from resumable._torch_private import seen_as_worker, shows_streams, worker_info
from resumable.backends.torch.engine import Engine, WorkerSetup
from resumable.backends.torch.hugging_face import keep_own_epochs, restore_own_shards
from resumable.backends.torch.in_worker import StreamPlan, WorkerEpoch, WorkerState, WorkerStream, stamped
from resumable.backends.torch.stream import Batches, TorchStreamBackend
from resumable.errors import DataError, StateMismatchError, UnevenBatchError, UnsupportedError
from resumable.protocols import ELSEWHERE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch.utils.data import DataLoader

    from resumable._options import Options
    from resumable.backends.torch.in_worker import Item


__all__ = ["LogicalStreamBackend"]


class LogicalStreamBackend(TorchStreamBackend):
    """Batches of a `DataLoader` over an `IterableDataset` that is read as `options.streams` streams.

    Args:
        loader: the user's.
        options: as for `TorchStreamBackend`, and the number of streams.
    """

    resets_each_epoch = True
    replays = False  # each epoch starts with fresh copies

    def __init__(self, loader: DataLoader[Any], options: Options) -> None:
        if not shows_streams:
            raise UnsupportedError(
                f"logical streams need a private name that PyTorch {torch.__version__} does not have: _worker_info.\n"
                "The dataset could not see its stream as a worker. Leave out streams=, or use an older PyTorch."
            )
        super().__init__(loader, options)
        assert options.streams is not None
        self._streams = options.streams
        known = {name: value for name, value in self.identity.items() if name != "workers"}
        self.identity = {**known, "streams": self._streams}
        self._running: Batches | DealtBatches | None = None
        self.traits = replace(self.traits, needs_shard=False)
        self.inside = replace(self.inside, restarts_workers=False)
        self.dealt_round_robin = options.shard is None
        # A state of workers fits as many streams, unless the dataset has a state, which may carry over epochs.
        self.alternate_identity = None if self._stateful else {**known, "workers": self._streams}

    def open(self, epoch: int) -> Iterator[Any]:
        """Start an epoch with fresh copies of the dataset."""
        went_on = self._running is not None and self._running.ended_before(epoch)
        plan = StreamPlan(epoch, 0, [WorkerState()] * self._streams)
        return self._go(plan, 0, reuse=went_on and self._loader.persistent_workers)

    def snapshot(self) -> Any:
        """Return the states of all streams after the last yielded batch; None before the first."""
        if self._running is None:
            return None
        if self._running.ended:
            return {"next": 0, "workers": [WorkerState().as_dict() for _ in range(self._streams)]}
        return self._running.snapshot()

    def restore(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        """Restore the state of every stream, and continue with the stream whose turn it is."""
        states = [WorkerState.from_dict(values) for values in snapshot["workers"]]
        if len(states) != self._streams:
            raise ValueError(f"the snapshot has {len(states)} streams, but this loader has {self._streams}")
        number, world = sum(state.batches for state in states), self._world()
        if world.size > 1:
            _check_even(states, number)
        if self._stateful:
            _check_here(states, self._own(world))
        return self._go(StreamPlan(epoch, snapshot["next"], states), number, reuse=False)

    def _go(self, plan: StreamPlan, number: int, *, reuse: bool) -> Iterator[Any]:
        world = self._world()
        if not reuse or self._engine is None:
            self._engine = self._make_engine(plan)
        items = _only_items(self._engine.run(None, seed=self._options.stream_seed, epoch=plan.epoch))
        batches = Batches(items, plan, self._meter, peeks=len(self._own(world)) if self._options.compares_data else 0)
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
        """Return the ranks among which the streams are divided.

        Raises:
            UnevenBatchError: the number of ranks does not divide the number of streams.
        """
        world = self._options.find_world() if self._options.shard is None else World()
        if self._streams % world.size:
            raise UnevenBatchError(
                f"{self._streams} streams cannot be divided evenly among {world.size} ranks.\n"
                "Some ranks would have more batches than others. Start with a number of streams that all your numbers "
                "of ranks divide, such as 16 or 60. Or pass wrap(..., shard=True) to let every rank read all streams."
            )
        return world

    def _own(self, world: World) -> range:
        return range(world.rank, self._streams, world.size)


def _only_items(running: Iterator[Item | None]) -> Iterator[Item]:
    """Yield the items without the None values that keep the workers in step."""
    try:
        for item in running:
            if item is not None:
                yield item
    finally:
        running.close()  # type: ignore[attr-defined]  # a generator


def _check_even(states: Sequence[WorkerState], number: int) -> None:
    """Check that the streams have alternated up to here, as the order of the ranks depends on it.

    Raises:
        StateMismatchError: some streams have ended and others have not.
    """
    counts = [state.batches for state in states]
    even = [_given(stream, number, len(states)) for stream in range(len(states))]
    if counts != even:
        raise StateMismatchError(
            "when this state was saved, some streams had ended and others had not.\n"
            f"  batches of each stream in the checkpoint: {counts}\n"
            f"  batches if no stream had ended:           {even}\n"
            "The ranks would have different numbers of batches. Continue on one rank, or pass wrap(..., shard=True) to "
            "let every rank read all streams."
        )


def _check_here(states: Sequence[WorkerState], own: Sequence[int]) -> None:
    """Check that a state has the dataset's own state for every stream of this rank.

    Raises:
        StateMismatchError: a different rank saved some of them.
    """
    missing = [stream for stream in own if states[stream].elsewhere]
    if missing:
        raise StateMismatchError(
            "the checkpoint lacks the dataset's state for some streams that this rank reads: another rank saved it.\n"
            f"  in the checkpoint: {[stream for stream, state in enumerate(states) if not state.elsewhere]}\n"
            f"  in this run:       {list(own)}\n"
            "The missing streams would start over. Use the same number of ranks, and load on each rank the state that "
            'it saved. Or pass wrap(..., resume="replay") to read the streams again up to the saved position.'
        )


class DealtBatches:
    """Yields the batches of this rank, and `ELSEWHERE` for the batches of other ranks.

    Batch `n` of an epoch is from stream `n mod S`, and rank `r` reads the streams `r, r + W, ...`. So each rank has
    one batch in every step of all ranks, and only counts the batches of the others. That is exact as long as all
    streams have the same number of batches. If the streams of one rank differ, that rank raises an error.

    Args:
        batches: of this rank.
        world: this rank.
        streams: total number of streams, `S`.
        number: number of the first batch to yield.
    """

    def __init__(self, batches: Batches, world: World, streams: int, number: int) -> None:
        self._batches, self._world, self._streams, self._number = batches, world, streams, number
        self._round = -1  # the last one in which this rank yielded a batch

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        turn, stream = divmod(self._number, self._streams)
        if stream % self._world.size == self._world.rank:
            batch = self._own(stream)
            self._round = turn
        elif turn <= self._round or self._batches.has_more():
            batch = ELSEWHERE
        else:
            self._batches.ended = True
            raise StopIteration
        self._number += 1
        return batch

    def _own(self, stream: int) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            if stream == self._world.rank:  # the first stream of this rank: all streams end here
                raise
            raise _uneven(self._world.rank, stream, self._number // self._streams) from None
        if self._batches.last != stream:
            raise _uneven(self._batches.last, stream, self._number // self._streams)
        return batch

    @property
    def ended(self) -> bool:
        """Whether the epoch is over."""
        return self._batches.ended

    def ended_before(self, epoch: int) -> bool:
        """Return whether these were all the batches of the epoch directly before `epoch`."""
        return self._batches.ended_before(epoch)

    def snapshot(self) -> Any:
        """Return the states of this rank's streams, and the number of batches from the others."""
        states = self._batches.snapshot()["workers"]
        rank, ranks = self._world.rank, self._world.size
        return {
            "next": self._number % self._streams,
            "workers": [state if one % ranks == rank else self._of_other(one) for one, state in enumerate(states)],
        }

    def _of_other(self, stream: int) -> dict[str, Any]:
        given = _given(stream, self._number, self._streams)
        return WorkerState(given, elsewhere=given > 0).as_dict()

    def close(self) -> None:
        """Stop the workers."""
        self._batches.close()


def _given(stream: int, number: int, streams: int) -> int:
    """Return how many of the first `number` batches are from a stream."""
    return number // streams + (stream < number % streams)


def _uneven(more: int, ended: int, count: int) -> DataError:
    return DataError(
        f"the streams have different numbers of batches: stream {ended} has ended after {count}, but stream {more} has "
        "more.\n"
        "The ranks would end at different steps and wait for each other. Make all streams equally long, or repeat the "
        "data endlessly and count steps. Or pass wrap(..., shard=True) to let every rank read all streams."
    )


class LogicalStreams(WorkerStream):
    """Yields an `Item` for every batch of this process's streams; None if no stream of the process has the turn.

    Args:
        loader: the user's.
        plan: the position at which the first epoch starts: the states of all streams, and the number of the next one.
        options: as for `WorkerStream`.
        stream: integers that distinguish this rank's keys, if each rank has all streams.
        own: numbers of this rank's streams, ascending.
    """

    called = "stream"

    def __init__(
        self, loader: DataLoader[Any], plan: StreamPlan, options: Options, stream: tuple[int, ...], own: range
    ) -> None:
        super().__init__(loader, plan, options, stream)
        self._initialise, self._own = loader.worker_init_fn, own

    def __iter__(self) -> Iterator[Item | None]:  # type: ignore[override]  # None only keeps the workers in step
        """Start the planned epoch, or the next one on later calls, with fresh copies of the dataset."""
        info, plan = get_worker_info(), self._plan
        epoch, turn, states = plan.epoch + self._epochs_begun, plan.turn, plan.states
        restore_own_shards()
        if self._epochs_begun:
            turn, states = 0, [WorkerState()] * len(states)
        elif info is not None:
            keep_own_epochs()
        self._epochs_begun, self.in_worker = self._epochs_begun + 1, info is not None
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        mine = _from_turn(self._own, turn)[worker::workers]
        base = _base_seed(self._seed, epoch)
        open_streams = {one: self._open(one, epoch, states[one], base) for one in mine if not states[one].ended}
        running = _in_turn(mine, open_streams, idle=-(-len(self._own) // workers) - len(mine))
        return running if info is None else sending(stamped(running))

    def batch(self, samples: list[Any]) -> Any:
        """Make a batch. Without workers, hide the stream: PyTorch's collate would use shared memory for a worker."""
        with nullcontext() if self.in_worker else seen_as_worker(None):
            return super().batch(samples)

    def _open(self, number: int, epoch: int, state: WorkerState, base_seed: int) -> Iterator[Item]:
        """Make a stream, which starts to read when its first item is requested."""
        streams, dataset = len(self._plan.states), _copied(self.user_dataset)
        info = worker_info(number, streams, base_seed + number, dataset)
        if self._initialise is not None:
            with seen_as_worker(info), self._guard():
                if self.randomness != "off":
                    _seed_as_in_a_worker(info.seed)
                self._initialise(number)
        items = WorkerEpoch(self, info.dataset, number, epoch, state).run()
        return _seen_inside(info, items)

    def _guard(self) -> AbstractContextManager[None]:
        return nullcontext() if self.in_worker or self.randomness == "off" else isolated()


def _from_turn(own: range, turn: int) -> list[int]:
    return [*(one for one in own if one >= turn), *(one for one in own if one < turn)]


def _in_turn(mine: list[int], streams: dict[int, Iterator[Item]], *, idle: int) -> Iterator[Item | None]:
    """Yield one item of each stream, then None for each stream that other workers have in addition."""
    while streams:
        for number in mine:
            if number not in streams:
                yield None
                continue
            item = next(streams[number])
            if item.state["ended"]:
                del streams[number]
            yield item
        yield from [None] * idle


def _seen_inside(info: Any, items: Iterator[Item]) -> Iterator[Item]:
    """Yield items, and show the dataset its stream while it makes them."""
    while True:
        with seen_as_worker(info):
            item = next(items)  # never past the end: the last item says that it is the last
        yield item


def _base_seed(seed: int, epoch: int) -> int:
    """Return the base seed that a `DataLoader` with one worker per stream would use."""
    generator = torch.Generator().manual_seed(int(derive(seed, epoch, words=1, purpose=b"workers")[0]) >> 1)
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def _seed_as_in_a_worker(seed: int) -> None:
    """Seed the global RNGs, NumPy's with all bits of the seed, as the seeds of two streams differ in the last bits."""
    reseed(seed)
    np.random.seed(int(derive(seed, words=1, purpose=b"workers")[0]) >> 32)  # noqa: NPY002  # the global one is meant


def _copied(dataset: Any) -> Any:
    try:
        return copy.deepcopy(dataset)
    except Exception as error:
        raise UnsupportedError(
            f"the dataset {type(dataset).__qualname__} cannot be copied: {type(error).__name__}: {error}.\n"
            "Each logical stream (wrap(..., streams=)) reads its own copy. Open files and similar resources in "
            "__iter__, or define __deepcopy__() on the dataset."
        ) from error
