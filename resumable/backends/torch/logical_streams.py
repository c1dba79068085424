"""What runs in the workers, or in this process, of a `DataLoader` that is read as a fixed number of logical streams.

Each stream iterates over a copy of the dataset, which sees the stream's number where it asks for that of its worker. A
worker gives one batch of each of its streams in turn, so that the batches of all workers together come in the turn of
the streams, however many workers there are:

    worker 0    0  2  4  0  2  4 ...
    worker 1    1  3  -  1  3  - ...     a worker with fewer streams gives nothing in their place
"""

from __future__ import annotations

import copy
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker as torchs_worker

from resumable._fetch.failures import sending
from resumable._randomness.keyed import derive
from resumable._randomness.keys import isolated, reseed
from resumable.backends.torch.epochs import keep_own_epochs
from resumable.backends.torch.sharded_states import mend_restoring
from resumable.backends.torch.worker_states import WorkerState
from resumable.backends.torch.worker_stream import WorkerEpoch, WorkerStream, stamped
from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from torch.utils.data import DataLoader

    from resumable._options import Options
    from resumable.backends.torch.worker_states import StreamPlan
    from resumable.backends.torch.worker_stream import Item

__all__ = ["LogicalStreams", "only_items"]


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
        epoch, turn, states = plan.epoch + self._passes, plan.turn, plan.states
        mend_restoring()
        if self._passes:
            turn, states = 0, [WorkerState()] * len(states)
        elif info is not None:
            keep_own_epochs()
        self._passes, self.in_worker = self._passes + 1, info is not None
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
        info = _info(number, len(self._plan.states), base_seed + number, _copied(self.user_dataset))
        if self._initialise is not None:
            with _seen_as(info), self._guard():
                if self.randomness != "off":
                    _seed_as_in_a_worker(info.seed)
                self._initialise(number)
        items = WorkerEpoch(self, info.dataset, number, epoch, state).run()
        return _seeing(info, items)

    def _guard(self) -> AbstractContextManager[None]:
        return nullcontext() if self.in_worker or self.randomness == "off" else isolated()


def only_items(running: Iterator[Item | None]) -> Iterator[Item]:
    """Leave out what only keeps the workers in step."""
    try:
        for item in running:
            if item is not None:
                yield item
    finally:
        running.close()  # type: ignore[attr-defined]  # a generator


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


def _from_turn(own: range, turn: int) -> list[int]:
    return [*(one for one in own if one >= turn), *(one for one in own if one < turn)]


def _seeing(info: Any, items: Iterator[Item]) -> Iterator[Item]:
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


def _info(number: int, streams: int, seed: int, dataset: Any) -> Any:
    return torchs_worker.WorkerInfo(id=number, num_workers=streams, seed=seed, dataset=dataset)


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
