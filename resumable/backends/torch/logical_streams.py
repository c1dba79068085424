"""Iterable-style datasets as a fixed number of logical streams, whatever the numbers of workers and ranks (`streams`).

The streams are what workers are without it: the dataset sees their numbers, each iterates over a copy of the dataset
with keys and a state of its own, and their batches come in turn. So a state of `N` workers goes on as one of `N`
streams. A worker gives one batch of each of its streams in turn, so the order is that of the streams, however many
workers there are:

    worker 0    0  2  4  0  2  4 ...
    worker 1    1  3  -  1  3  - ...     a worker with fewer streams gives nothing in their place
"""

from __future__ import annotations

import copy
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker as torchs_worker

from resumable._fetch.failures import sending
from resumable._order.world import World
from resumable._randomness.keyed import derive
from resumable._randomness.keys import isolated, reseed
from resumable.backends.torch.engine import Engine, WorkerSetup
from resumable.backends.torch.hugging_face import keep_own_epochs, mend_restoring
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


def _only_items(running: Iterator[Item | None]) -> Iterator[Item]:
    """Leave out what only keeps the workers in step."""
    try:
        for item in running:
            if item is not None:
                yield item
    finally:
        running.close()  # type: ignore[attr-defined]  # a generator


def _check_even(states: Sequence[WorkerState], number: int) -> None:
    """Refuse the states of streams of which some have ended and others have not: their turn is not that of ranks.

    Raises:
        StateMismatchError: they are.
    """
    counts = [state.batches for state in states]
    even = [_given(stream, number, len(states)) for stream in range(len(states))]
    if counts != even:
        raise StateMismatchError(
            "the state is of a place at which some streams have ended, and others go on.\n"
            f"  batches of each stream in the checkpoint: {counts}\n"
            f"  in turn they would be:                    {even}\n"
            "The ranks would have different numbers of batches. Go on with one rank, or with wrap(..., shard=True), by "
            "which every rank reads all streams."
        )


def _check_here(states: Sequence[WorkerState], own: Sequence[int]) -> None:
    """Refuse a state in which another rank's streams are left out that this rank is to read.

    Raises:
        StateMismatchError: it is one.
    """
    missing = [stream for stream in own if states[stream].elsewhere]
    if missing:
        raise StateMismatchError(
            "the state lacks the dataset's own state for some streams that this rank reads: another rank saved those.\n"
            f"  in the checkpoint: {[stream for stream, state in enumerate(states) if not state.elsewhere]}\n"
            f"  in this run:       {list(own)}\n"
            "The missing ones would begin again. Give each rank the state that it saved itself, on as many ranks; or "
            'wrap(..., resume="replay") to read the streams again up to the place.'
        )


class DealtBatches:
    """Gives the batches of this rank, and `ELSEWHERE` for those of others.

    Batch number `n` of an epoch is that of stream `n mod S`, and rank `r` reads the streams `r, r + W, ...`: so it has
    one batch in every step of all ranks, and knows of the others by number only. That is exact as long as all streams
    give as many batches. A rank whose own streams do not is stopped by an error.

    Args:
        batches: of this rank.
        world: which rank it is.
        streams: number of streams of all ranks, `S`.
        number: of the first batch to give.
    """

    def __init__(self, batches: Batches, world: World, streams: int, number: int) -> None:
        self._batches, self._world, self._streams, self._number = batches, world, streams, number
        self._round = -1  # the last one in which this rank gave a batch

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
            if stream == self._world.rank:  # the first one of this rank: all streams end here
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
        """Return whether these were all the batches of the epoch just before."""
        return self._batches.ended_before(epoch)

    def snapshot(self) -> Any:
        """Return the states of this rank's streams, and how many batches the others have given."""
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
    """Return how many batches a stream gave among the first `number` of all."""
    return number // streams + (stream < number % streams)


def _uneven(more: int, ended: int, count: int) -> DataError:
    return DataError(
        f"the streams have different numbers of batches: stream {ended} has ended after {count}, and stream {more} has "
        "more.\n"
        "The ranks would end at different steps, and wait for each other. Give every stream as much data, or let it "
        "repeat without an end and count steps; or give wrap(..., shard=True), by which every rank reads all streams."
    )


class LogicalStreams(WorkerStream):
    """Yields an `Item` for every batch of the streams of this process; None where it has no stream for its turn.

    Args:
        loader: the user's.
        plan: where the first epoch is begun: the states of all streams, and the number of the one whose turn it is.
        options: as for `WorkerStream`.
        stream: integers that set this rank's keys apart, where each rank has all streams.
        own: numbers of the streams of this rank, rising.
    """

    called = "stream"

    def __init__(
        self, loader: DataLoader[Any], plan: StreamPlan, options: Options, stream: tuple[int, ...], own: range
    ) -> None:
        super().__init__(loader, plan, options, stream)
        self._initialise, self._own = loader.worker_init_fn, own

    def __iter__(self) -> Iterator[Item | None]:  # type: ignore[override]  # None only keeps the workers in step
        """Begin an epoch: the planned one, later the ones after it, with fresh copies of the dataset."""
        info, plan = get_worker_info(), self._plan
        epoch, turn, states = plan.epoch + self._epochs_begun, plan.turn, plan.states
        mend_restoring()
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
        """Make a batch. In this process as outside of any worker: in one, torch's collate takes shared memory."""
        with nullcontext() if self.in_worker else _seen_as(None):
            return super().batch(samples)

    def _open(self, number: int, epoch: int, state: WorkerState, base_seed: int) -> Iterator[Item]:
        """Make a stream; it begins to read when its first item is asked for."""
        streams, dataset = len(self._plan.states), _copied(self.user_dataset)
        info: Any = torchs_worker.WorkerInfo(id=number, num_workers=streams, seed=base_seed + number, dataset=dataset)
        if self._initialise is not None:
            with _seen_as(info), self._guard():
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
    """Yield one item of each stream in turn, and as many of nothing as other workers have streams more."""
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
    """Yield what comes while the dataset sees its stream."""
    while True:
        with _seen_as(info):
            item = next(items)  # the last one says that it is
        yield item


@contextmanager
def _seen_as(info: Any) -> Iterator[None]:
    """Let `get_worker_info()` return something else inside."""
    module: Any = torchs_worker
    before, module._worker_info = module._worker_info, info  # noqa: SLF001  # what torch itself sets in a worker
    try:
        yield
    finally:
        module._worker_info = before  # noqa: SLF001  # likewise


def _base_seed(seed: int, epoch: int) -> int:
    """Return the seed that a `DataLoader` with the streams as workers would draw, and add their numbers to."""
    generator = torch.Generator().manual_seed(int(derive(seed, epoch, words=1, purpose=b"workers")[0]) >> 1)
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def _seed_as_in_a_worker(seed: int) -> None:
    """Seed the global generators; NumPy's by all bits of the seed, as those of two streams differ in the last ones."""
    reseed(seed)
    np.random.seed(int(derive(seed, words=1, purpose=b"workers")[0]) >> 32)  # noqa: NPY002  # the global one is meant


def _copied(dataset: Any) -> Any:
    try:
        return copy.deepcopy(dataset)
    except Exception as error:
        raise UnsupportedError(
            f"the dataset {type(dataset).__qualname__} cannot be copied: {type(error).__name__}: {error}.\n"
            "Each logical stream (wrap(..., streams=)) reads a copy of its own. Open files and the like in __iter__, "
            "or give the dataset a __deepcopy__()."
        ) from error
