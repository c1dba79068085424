"""Worker processes that read requests: a PyTorch `DataLoader`, for every backend that needs processes.

The workers hold the order, so each batch costs only a few integers to request. If the order changes, each persistent
worker gets the new one with its first request that uses it. PyTorch is imported only when it is needed.

Schedulers send the signal that ends a job to all of its processes. It would kill a worker, and the training process
with it, before anything is saved. So workers survive the signal, and the training process can finish its step.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import threading
import time
from contextlib import suppress
from itertools import chain
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet, finalize

from resumable._fetch.failures import Sent, describe_death, is_death, received, worker_number
from resumable._fetch.order import Order
from resumable._fetch.stalls import answers_awaited
from resumable._stats import Made, Meter, Queue
from resumable.errors import BackendError, WorkerError
from resumable.protocols import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from torch.utils.data import DataLoader

    from resumable._fetch.reader import Reader
    from resumable._order.plan import Plan

__all__ = ["RequestDataset", "Workers", "end_when_orphaned", "heed", "heeded", "ignore", "outlive", "tell_once"]


Numbers = tuple[int, int, int, int, int, int]

# PyTorch's iterator ends its workers when it is dropped, with an event that all processes share. So dropping a copy in
# a forked process would end the workers of its parent. Reading the copy would take batches from the parent's queue.
_running: WeakSet[Any] = WeakSet()
_copies: list[Any] = []  # kept as long as this process exists, so nothing in them ends


def watch(iterator: Any) -> None:
    """Register an iterator with worker processes: keep its copy in a fork, and let its workers end if it is garbage.

    For a garbage cycle, the collector closes the queues before it calls the iterator's `__del__`. The stop message
    would not reach the workers, and PyTorch would wait 5 seconds for each. A reference from outside the cycle keeps the
    queues alive until then.
    """
    if iterator not in _running:
        finalize(iterator, list, _private().requests_of(iterator)).atexit = False  # they carry the stop message
        _running.add(iterator)


def is_copy(iterator: Any) -> bool:
    """Return whether a fork copied an iterator from a parent process, so its workers belong to the parent."""
    return any(iterator is copy for copy in _copies)


def _keep() -> None:
    _copies.extend(_running)
    _running.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_keep)


class _Introduction(NamedTuple):
    """The numbers of a request, with what is needed to resolve them and those that follow.

    It is pickled: an order, or only its plan if the worker already has the samples of that order.
    """

    pickled: bytes
    numbers: Numbers


Message = Request | Numbers | _Introduction  # what the sampler of a `DataLoader` yields


class RequestDataset:
    """The dataset that a worker sees: its index is a complete request, and its sample a complete batch.

    Args:
        reader: reads a request.
        pack: converts the reader's result into what is sent; None to send it unchanged.
        in_worker: whether it is read in a process whose global RNGs may be changed.
    """

    def __init__(self, reader: Reader, pack: Callable[[Any], Any] | None = None, *, in_worker: bool = True) -> None:
        self._reader, self._pack, self._in_worker = reader, pack, in_worker
        self.order: Order | None = None

    @property
    def user_dataset(self) -> Any:
        """The user's dataset, without wrappers of this package."""
        return getattr(self._reader.source, "user_dataset", self._reader.source)

    def __getitem__(self, message: Message) -> Any:
        """Read a request. In the training process, the RNGs stay unchanged. A worker sends exceptions to it."""
        if worker_number() is None:
            return self._read(message)
        began = perf_counter()
        try:
            batch = self._read(message)
        except Exception as error:  # noqa: BLE001  # of any type, raised in the training process
            return Sent(error)
        from resumable._fetch.transport import Answer  # noqa: PLC0415  # each worker has imported torch

        return Answer(Made(batch, (made := perf_counter()) - began, made))

    def _read(self, message: Message) -> Any:
        request = self.request_of(message)
        batch = self._reader.read(request) if self._in_worker else self._reader.read_isolated(request)
        return batch if self._pack is None else self._pack(batch)

    def request_of(self, message: Message) -> Request:
        """Return the request from a message, bound to the order of this process."""
        if isinstance(message, Request):
            return message
        if isinstance(message, _Introduction):
            self._learn(pickle.loads(message.pickled), message.numbers[-1])  # noqa: S301  # from the training process
            message = message.numbers
        order = self.order
        if order is None or order.version != message[-1]:
            raise BackendError(
                "a worker got a request for an order that it does not have.\n"
                f"  its order: {order}\n  request:   {message}\n"
                "It would have read different samples. PyTorch's DataLoader normally sends requests to its workers "
                "round-robin, but did not do so here: please report this with your PyTorch version."
            )
        return Request(*message, order=order)

    def _learn(self, told: Order | Plan, version: int) -> None:
        if isinstance(told, Order):
            self.order = told
        elif self.order is not None:
            self.order = self.order.changed(told, version=version)


class Workers:
    """A `DataLoader` over requests or over a stream, whose processes may stay alive from one run to the next.

    An open run has the processes to itself; a second run at the same time gets new ones. The workers' seeds come from a
    separate generator, not from PyTorch's global RNG, so iterating never changes the trainer's randomness.

    Args:
        dataset: what the processes run: a `RequestDataset`, or an iterable-style one.
        options: returns the options for a `DataLoader` that set the number and the kind of processes.
        meter: gets the measurements of the processes.
    """

    def __init__(self, dataset: Any, options: Callable[[], Mapping[str, Any]], meter: Meter | None = None) -> None:
        self._dataset, self._options, self._meter = dataset, options, meter or Meter()
        self._spare: DataLoader[Any] | None = None  # with processes that stay alive
        self._ended = False

    def run(self, requests: Iterable[Request] | None, *, seed: int | None = None) -> Generator[Any]:
        """Yield what the processes return, in order.

        Args:
            requests: what to read, or None if the dataset is a stream.
            seed: for the workers' own seeds; None continues after the last run.

        Raises:
            WorkerError: a process died or could not be started.
        """
        given = self._options()
        try:
            yield from self._run(requests, seed, given)
        except (RuntimeError, OSError, EOFError) as error:
            # Around all of it, because PyTorch's signal handler for a dead child raises between any two lines.
            if not given["num_workers"] or not is_death(error):
                raise
            raise describe_death(error) from error

    def close(self) -> None:
        """End the processes that wait for the next run, which then gets new ones."""
        spare, self._spare = self._spare, None
        if spare is not None:
            _shut_down(_private().iterator_of(spare))  # the only way to end them immediately

    def end(self) -> None:
        """End the processes permanently, even if something still refers to them.

        As long as a dead worker is referenced, PyTorch raises its error whenever any process ends, between any two
        lines.
        """
        self._ended = True
        self.close()

    def _run(self, requests: Iterable[Request] | None, seed: int | None, given: Mapping[str, Any]) -> Generator[Any]:
        loader, self._spare = self._spare, None
        if loader is not None and is_copy(_private().iterator_of(loader)):  # it has the processes
            loader = None
        answers: Iterator[Any] | None = None
        healthy = False
        try:
            if requests is not None:
                source = iter(requests)
                if (first := next(source, None)) is None:
                    healthy = True
                    return
                requests = chain([first], source)
                if loader is None:
                    self._dataset.order = _inherited(first, given)
            if loader is None:
                loader = self._build(given, asked=requests is not None)
            answers = self._start(loader, requests, seed)
            queue = Queue(self._meter, loader.num_workers * (loader.prefetch_factor or 1))
            while True:
                healthy = False
                queue.ask()
                thread = get_ident()
                answers_awaited[thread] = answers
                try:
                    answer = received(queue.came(next(answers)))
                except StopIteration:
                    queue.over()
                    healthy = True
                    return
                finally:
                    answers_awaited.pop(thread, None)
                healthy = True
                yield answer
        finally:
            healthy = healthy and not self._ended
            if healthy and given.get("persistent_workers") and _private().iterator_of(loader) is not None:
                self._spare = loader
            elif not healthy:
                # An error's traceback keeps the iterator and its workers alive until the error is dropped.
                _shut_down(answers)

    def _build(self, given: Mapping[str, Any], *, asked: bool) -> DataLoader[Any]:
        import torch  # noqa: PLC0415  # only needed if there are processes

        messages: Any = _Messages(given["num_workers"], self._dataset.order) if asked else None
        own, kind = torch.Generator(), self._loader_type(given)
        if given["num_workers"] and kind is not torch.utils.data.DataLoader:
            from resumable._fetch.transport import ByValue  # noqa: PLC0415  # the same

            given = {**given, "worker_init_fn": ByValue(given.get("worker_init_fn"))}
        return kind(self._dataset, batch_size=None, sampler=messages, collate_fn=_unchanged, generator=own, **given)

    def _loader_type(self, given: Mapping[str, Any]) -> type[DataLoader[Any]]:
        from torch.utils.data import DataLoader  # noqa: PLC0415  # only needed if there are processes

        from resumable._fetch.transport import QuickLoader  # noqa: PLC0415  # the same

        why = _private().plain_workers() if given["num_workers"] else ""
        if why:
            tell_once(logging.WARNING if _private().ABSENT else logging.INFO, _PLAIN.format(why))
        elif given["num_workers"] and not _forks(given.get("multiprocessing_context")):
            tell_once(logging.INFO, _PLAIN.format(why := "they are not forked"))
        return DataLoader if why else QuickLoader

    def _start(self, loader: DataLoader[Any], requests: Iterable[Request] | None, seed: int | None) -> Iterator[Any]:
        if requests is not None:
            loader.sampler.requests = requests  # type: ignore[attr-defined]  # `_Messages`
        if seed is not None:
            loader.generator.manual_seed(seed)
        try:
            answers = iter(loader)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            if not loader.num_workers or _can_pickle((loader.dataset, loader.worker_init_fn)):
                raise
            raise WorkerError(
                f"cannot start the workers: dataset, collate_fn or worker_init_fn cannot be pickled: {error}\n"
                "Workers that are not forked get a pickled copy. Define them at the top level of a module, or use "
                'multiprocessing_context="fork" (for a DALI source: py_start_method="fork").'
            ) from error
        if loader.num_workers:
            watch(answers)
        return answers


class _Messages:
    """Replaces the sampler of a `DataLoader`, so persistent workers can get new requests.

    PyTorch sends what a sampler yields to the workers round-robin, starting with the first worker each time it is
    iterated over.

    Args:
        workers: how many there are; with none, requests stay unchanged.
        order: the order that the workers know when they start.
    """

    def __init__(self, workers: int, order: Order | None) -> None:
        self._known: list[Order | None] = [order] * workers
        self._packed: tuple[Order | Plan, bytes | None] | None = None
        self.requests: Iterable[Request] = ()

    def __iter__(self) -> Iterator[Message]:
        return self._numbers() if self._known else iter(self.requests)

    def _numbers(self) -> Iterator[Message]:
        known, count, worker = self._known, len(self._known), 0
        for request in self.requests:
            yield request[:6] if request.order is known[worker] else self._introduction(request, worker)
            worker = (worker + 1) % count

    def _introduction(self, request: Request, worker: int) -> Message:
        """Return the numbers with the order; if no order can be sent, the request itself, which lists its samples."""
        order = request.order
        if not isinstance(order, Order) or not order.travels:
            return request
        known = self._known[worker]
        told = order.plan if known is not None and order.samples == known.samples else order
        if self._packed is None or self._packed[0] is not told:
            self._packed = told, _pickled(told)
        packed = self._packed[1]
        if packed is None:
            return request
        self._known[worker] = order
        return _Introduction(packed, request[:6])


def _inherited(first: Request, given: Mapping[str, Any]) -> Order | None:
    """Return the order that new workers start with: from their fork, or pickled with the dataset if that works."""
    order = first.order if isinstance(first.order, Order) and first.order.travels else None
    if order is None or not given["num_workers"]:
        return None
    return order if _forks(given.get("multiprocessing_context")) or _can_pickle(order) else None


def _forks(context: Any) -> bool:
    if context is None:
        from torch.multiprocessing import get_start_method  # noqa: PLC0415  # only needed if there are processes

        return get_start_method() == "fork"
    return (context if isinstance(context, str) else context.get_start_method()) == "fork"


def _pickled(thing: Any) -> bytes | None:
    try:
        return pickle.dumps(thing)
    except Exception:  # noqa: BLE001  # a user's object may raise anything
        return None


def _can_pickle(thing: Any) -> bool:
    return _pickled(thing) is not None


def _shut_down(answers: Any) -> None:
    if answers is None or is_copy(answers):
        return
    with suppress(RuntimeError):  # PyTorch's signal handler raises if a worker is found dead here
        _private().end_workers(answers)


def _private() -> Any:
    """Return the module with PyTorch's private names, which imports PyTorch: only needed if there are processes."""
    from resumable import _torch_private  # noqa: PLC0415  # the same

    return _torch_private


_PLAIN = (
    "a plain DataLoader runs the worker processes, because {}. Batches and states are the same; small tensors "
    "take longer to arrive."
)
_told: set[str] = set()


def tell_once(level: int, message: str) -> None:
    """Log a message once per process."""
    if message not in _told:
        _told.add(message)
        logging.getLogger("resumable").log(level, message)


def _unchanged(item: Any) -> Any:
    return item


_heeded: list[frozenset[int]] = []


def heed(signals: Iterable[int]) -> None:
    """Note that the training process handles these signals, and ends its workers itself."""
    _heeded.append(frozenset(signals))


def ignore(signals: Iterable[int]) -> None:
    """Note that it no longer handles them."""
    _heeded.remove(frozenset(signals))


def heeded() -> frozenset[int]:
    """Return the signals that the training process handles now, or handled when this process was forked."""
    return frozenset().union(*_heeded)


_LOOK, _GRACE = 1.0, 10.0  # seconds between two checks of the parent, and to let this process end on its own


def end_when_orphaned() -> None:
    """Let this worker end after its parent was killed, even if it is blocked.

    PyTorch's own workers also end then, unless they wait forever. A worker may wait to send more than the pipe holds,
    because the workers keep the other end of the pipe open for each other. Or it waits for the rest of an interrupted
    message.
    """
    threading.Thread(target=_leave_when_orphaned, daemon=True).start()


def _leave_when_orphaned() -> None:
    """End this process once its reader is gone.

    The parent may have been killed before the first check, and a new process may have its id by then.
    """
    parent, reader = os.getppid(), multiprocessing.parent_process()
    while os.getppid() == parent and (reader is None or reader.pid is None or _exists(reader.pid)):
        time.sleep(_LOOK)
    time.sleep(_GRACE)
    os._exit(1)


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def outlive(signals: frozenset[int]) -> None:
    """Let this worker survive these signals, unless its parent sends SIGTERM."""
    for number in signals - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)
    if signal.SIGTERM in signals and hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # also in threads that start later
        threading.Thread(target=_end_for_parent, name="resumable-sigterm", daemon=True).start()


def _end_for_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid not in (os.getppid(), 0):
        pass
    os._exit(0)  # as PyTorch's own handler does
