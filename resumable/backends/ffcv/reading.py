"""The indexed backend: our sampler determines what is read, and FFCV's compiled operations read it."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import chain, repeat
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import torch
from ffcv.memory_managers import OSCacheManager

from resumable._fetch.failures import ended_inside, note
from resumable._fetch.stream import may_wait
from resumable._randomness.keys import isolated
from resumable.backends.ffcv.identity import Settings, describe_fields, describe_pipelines, fingerprint, hash_content
from resumable.backends.ffcv.parts import Team
from resumable.backends.ffcv.pipeline import Pipeline
from resumable.errors import DataError
from resumable.failpoints import point
from resumable.protocols import Traits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from ffcv.loader import Loader

    from resumable._options import Options
    from resumable.backends.ffcv.identity import Source
    from resumable.backends.ffcv.pipeline import Job
    from resumable.protocols import Request


__all__ = ["FFCVBackend", "opened", "seeded"]


_HINTS = {
    "pipeline": "Use the same pipelines in the Loader as in the original run.",
    "sampler.window": "QUASI_RANDOM shuffles in windows of pages. Use the window of the original run: "
    "wrap(resumable.backends.ffcv.source(loader, window=...)).",
}
_PATIENCE = 1.0  # seconds between two checks for dead threads
_IN_FLIGHT = 2


class FFCVBackend:
    """Reads requests with the operations of an FFCV Loader.

    Args:
        source: the Loader and its options.
        options: randomness, identity, and the ranks.
    """

    kind = "ffcv"

    def __init__(self, source: Source, options: Options) -> None:
        loader = source.loader
        self._loader, self._options = loader, options
        self.length = int(loader.reader.num_samples)
        self.identity = {
            "file": options.identity or fingerprint(loader.reader),
            "fields": describe_fields(loader.reader),
            "pipeline": describe_pipelines(loader),
        }
        if source.content_hash:
            self.identity["content"] = hash_content(loader.reader.file_name)
        self.traits, self._settings = Traits(hints=_HINTS, reads_ahead=True), Settings(loader)
        told = None if options.randomness == "off" else source.modes
        self.pipeline = Pipeline(loader, told)

    def settings(self) -> dict[str, Any]:
        """Return the settings that a user has changed in the Loader."""
        return self._settings.changed()

    def set_settings(self, settings: Mapping[str, Any]) -> None:
        """Apply changed settings to the Loader."""
        self._settings.change(settings)

    def read(self, requests: Iterable[Request]) -> Iterator[Any]:
        """Yield one batch per request: a tuple with one part for each field.

        The operations' settings are read at the call, not at the first batch.
        """
        source = iter(requests)
        first = next(source, None)
        if first is None:
            return iter(())
        more = int(self._options.find_world().size > 1)  # the shares of ranks may differ in size, at most one sample
        return EpochRun(self._loader, self.pipeline, chain([first], source), more).batches()


class EpochRun:
    """Makes batches in a second thread, as many ahead as the Loader's `batches_ahead`.

    The iterating thread takes the requests, because a generator yields them. The second thread only makes batches, and
    an error in it is raised instead of its batch. The thread has ended when the iteration ends, however it ends.

    Args:
        loader: FFCV's.
        pipeline: makes the batches.
        requests: at least one.
        more: how many more samples a later request may have than the first.
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
        file = ExitStack()  # the other thread uses it, and closes it at its end
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
        """Request one more batch, if there is a request; return whether any batches are still expected."""
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
        """Make batches until stopped, and clean up; runs in the other thread."""
        numba.set_num_threads(self._workers)
        with file, self._team:
            while (asked := self._asked.get()) is not None and not self._stopped:
                made: Any
                try:
                    made = self._make(*asked)
                except BaseException as error:  # noqa: BLE001  # raised again instead of the batch
                    made = error
                self._made.put(made)
                del made, asked  # to free the memory once the batch is dropped

    def _make(self, number: int, request: Request) -> tuple[Job, Any]:
        self._pages.start_batch(number)
        with self._device.working():
            job = self._pipeline.make(request, self._pages.state, self._memory, self._team)
            return job, self._device.made(job.results)


def _tell(error: BaseException) -> None:
    """Add to an error that FFCV's pipeline raised it.

    Raises:
        SampleError: it is a `StopIteration`, which would look like the end of the epoch.
    """
    if isinstance(error, StopIteration):
        raise ended_inside("FFCV's pipeline") from error
    if isinstance(error, Exception):
        note(error, "FFCV's pipeline")


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Seed the global RNGs, including RNGs of GPUs, and restore them at the end."""
    with isolated(key):
        if not torch.cuda.is_available():
            yield
            return
        with torch.random.fork_rng():
            torch.cuda.manual_seed_all(key)
            yield


def needs_all_requests(loader: Loader) -> bool:
    """Return whether the pages of the rest of an epoch must be planned before it starts (`os_cache=False`)."""
    return not isinstance(loader.memory_manager, OSCacheManager)


@contextmanager
def opened(loader: Loader, requests: Sequence[Request]) -> Iterator[Any]:
    """Open the file for a part of an epoch. A page cache starts threads that read; all of them end at the exit."""
    context = loader.memory_manager.schedule_epoch([np.asarray(request.indices).tolist() for request in requests])
    context.__enter__()
    try:
        yield context
    finally:
        context.__exit__(None, None, None)
        for thread in _readers(context):
            thread.join()


def wake_if_readers_died(context: Any) -> None:
    """If all threads that read pages are dead, raise an error in the thread that waits for a page."""
    readers = _readers(context)
    if readers and not any(reader.is_alive() for reader in readers):
        context.executor.loaded_queue.put(_NoReaders(context.fname))


def _readers(context: Any) -> Any:
    return getattr(getattr(context, "executor", None), "threads", ())


class _NoReaders:
    """Replaces a page number, and raises an error in the thread that uses it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __hash__(self) -> int:
        raise DataError(
            f"the threads that read {self._name} have died; the errors above say why.\n"
            "No more pages would arrive. Check that the file still exists. The loader's state does not include this "
            "batch."
        )


def find_device() -> Host:
    """Return the GPU if there is one, otherwise the host."""
    return Cuda() if torch.cuda.is_available() else Host()


class Host:
    """Without a GPU, there is nothing to wait for."""

    pinned = False

    def working(self) -> AbstractContextManager[Any]:
        """Return the context in which a batch is made."""
        return nullcontext()

    def made(self, results: dict[int, Any]) -> Any:  # noqa: ARG002  # for the subclass
        """Note that a batch was made; return the argument for `hand_over`."""
        return None

    def hand_over(self, made: Any, outputs: tuple[Any, ...]) -> None:
        """Make the consumer's work wait for the batch."""


class Cuda(Host):
    """Makes batches in a separate stream, so copies to the GPU overlap with the training.

    PyTorch's allocator provides new GPU memory for every batch, and `record_stream` tells it that the consumer uses
    that memory. Pinned memory is kept until the copies from it are done.
    """

    pinned = True

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own gap
        self._copying: deque[tuple[torch.cuda.Event, dict[int, Any]]] = deque()

    def working(self) -> AbstractContextManager[Any]:
        """Return the context in which a batch is made."""
        return torch.cuda.stream(self._stream)

    def made(self, results: dict[int, Any]) -> Any:
        """Note that a batch was made, and wait for the copies of batches before the last two."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own gap
        event.record(self._stream)
        self._copying.append((event, dict(results)))
        while len(self._copying) > _IN_FLIGHT:
            self._copying.popleft()[0].synchronize()
        return event

    def hand_over(self, made: Any, outputs: tuple[Any, ...]) -> None:
        """Make the consumer's stream wait for the batch, and tell the allocator that it uses the batch."""
        stream = torch.cuda.current_stream()
        stream.wait_event(made)
        for output in outputs:
            if isinstance(output, torch.Tensor) and output.is_cuda:
                output.record_stream(stream)
