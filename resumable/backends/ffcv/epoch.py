"""One pass over requests: a thread makes batches ahead, as many as the Loader's `batches_ahead`."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack
from itertools import chain, repeat
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import numba

from resumable._fetch.failures import ended_inside, note
from resumable._fetch.stream import may_wait
from resumable.backends.ffcv.device import find_device, seeded
from resumable.backends.ffcv.pages import needs_all_requests, opened, wake_if_readers_died
from resumable.backends.ffcv.parts import Team
from resumable.failpoints import point

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ffcv.loader import Loader

    from resumable.backends.ffcv.pipeline import Job, Pipeline
    from resumable.protocols import Request

__all__ = ["EpochRun"]

_PATIENCE = 1.0  # seconds between two looks at whether somebody has died


class EpochRun:
    """Makes the batches of a part of an epoch.

    Requests are taken in the thread that iterates, as they come from a generator; the other thread only makes batches.
    What it raises is raised where the batch would have come. It has ended when the iteration ends, in whatever way.

    Args:
        loader: FFCV's.
        pipeline: makes the batches.
        requests: at least one.
        more: samples that another request may have more than the first.
    """

    def __init__(self, loader: Loader, pipeline: Pipeline, requests: Iterable[Request], more: int) -> None:
        self._pipeline, self._workers, self._ahead = pipeline, loader.num_workers, loader.batches_ahead
        planned = list(requests) if needs_all_requests(loader) else []
        source = iter(planned or requests)
        first = next(source)
        self._requests = chain([first], source)
        self._device = find_device()
        self._memory = pipeline.begin_epoch(samples=first.size + more, keep=self._ahead + 3, pinned=self._device.pinned)
        self._opened = opened(loader, planned)
        self._pages: Any = None
        self._asked: SimpleQueue[tuple[int, Request] | None] = SimpleQueue()
        self._made: SimpleQueue[Any] = SimpleQueue()
        self._in_flight: deque[Request] = deque()
        self._team = Team(loader.num_workers)
        self._count, self._stopped = 0, False

    def batches(self) -> Iterator[Any]:
        """Yield a batch for each request."""
        file = ExitStack()  # closed by the other thread, which uses it, at its end
        self._pages = file.enter_context(self._opened)
        thread = threading.Thread(target=self._work, args=(file,), name="resumable-ffcv", daemon=True)
        thread.start()
        wait = True
        try:
            for _ in repeat(None, self._ahead):
                self._ask()
            while self._ask():
                yield self._take()
        except GeneratorExit:
            wait = may_wait()
            raise
        finally:
            self._stopped = True
            self._asked.put(None)
            if wait:
                thread.join()

    def _ask(self) -> bool:
        """Ask for one more batch, if there is a request; return whether any batch is to come."""
        request = next(self._requests, None)
        if request is not None:
            point("worker.read", request)
            self._in_flight.append(request)
            self._asked.put((self._count, request))
            self._count += 1
        return bool(self._in_flight)

    def _take(self) -> Any:
        made, request = self._wait(), self._in_flight.popleft()
        if isinstance(made, BaseException):
            _tell(made)
            raise made
        job, event = made
        try:
            self._device.hand_over(event, tuple(job.results.values()))
            if self._pipeline.has_late_steps:
                with seeded(request.batch_key):
                    self._pipeline.finish(job, self._memory)
        except Exception as error:
            _tell(error)
            raise
        return self._pipeline.outputs(job)

    def _wait(self) -> Any:
        while True:
            try:
                return self._made.get(timeout=_PATIENCE)
            except Empty:
                wake_if_readers_died(self._pages)

    def _work(self, file: ExitStack) -> None:
        """Make batches until told to stop, and leave nothing behind; in the other thread."""
        numba.set_num_threads(self._workers)
        with file, self._team:
            while (asked := self._asked.get()) is not None and not self._stopped:
                made: Any
                try:
                    made = self._make(*asked)
                except BaseException as error:  # noqa: BLE001  # raised again where the batch would have come
                    made = error
                self._made.put(made)
                del made, asked  # so that the memory is free once the batch is dropped

    def _make(self, number: int, request: Request) -> tuple[Job, Any]:
        self._pages.start_batch(number)
        with self._device.working():
            job = self._pipeline.make(request, self._pages.state, self._memory, self._team)
            return job, self._device.made(job.results)


def _tell(error: BaseException) -> None:
    """Say what raised an error.

    Raises:
        SampleError: it is a `StopIteration`, which would be taken for the end of the epoch.
    """
    if isinstance(error, StopIteration):
        raise ended_inside("FFCV's pipeline") from error
    if isinstance(error, Exception):
        note(error, "FFCV's pipeline")
