"""Quick: a `DataLoader` whose queues take less time per batch, of the training process and of the workers.

A queue of `multiprocessing` leaves each message to a thread, which is woken and then writes it, and makes a selector
for each wait. Requests are a few numbers, and answers may be small, too: writing what the pipe takes at once takes less
than waking the thread. Workers that are not forked answer by their thread.
"""

from __future__ import annotations

import select
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from resumable._fetch.lost_workers import is_death
from resumable._fetch.transport import pickled_here

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["QuickLoader"]

_AT_ONCE = getattr(select, "PIPE_BUF", 512) - 4  # bytes that a pipe takes at once if it takes any, less their length


class QuickLoader(DataLoader[Any]):
    """A `DataLoader` whose iterator and workers write small messages themselves."""

    def _get_iterator(self) -> Any:
        if not self.num_workers or not hasattr(select, "poll"):  # Windows has none
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return _Iterator(self)


class _Iterator(_MultiProcessingDataLoaderIter):
    @property
    def _worker_result_queue(self) -> Any:
        return self._results

    @_worker_result_queue.setter
    def _worker_result_queue(self, queue: Any) -> None:  # before the workers start, which have it by their fork
        queue.put = _putter(queue, pickled_here)
        self._results = queue

    def _reset(self, loader: Any, first_iter: bool = False) -> None:  # torch's signature
        if first_iter:  # before the first request, so that no thread has one to write
            requests: Any = self._index_queues
            for queue in requests:
                queue.put = _putter(queue)
            self._results._poll = _waiter(self._results._reader)  # noqa: SLF001  # where the queue keeps its connection's own
        super()._reset(loader, first_iter)


def _putter(queue: Any, pickle: Callable[[Any], memoryview] = ForkingPickler.dumps) -> Callable[..., None]:
    """Return what puts a message into a queue: itself, unless it is large, or the pipe is full, or one before it was.

    All messages after such a one are left to the queue's thread, so that they come in their order.
    """
    by_thread, writer = queue.put, queue._writer  # noqa: SLF001  # the ends of the pipe are nowhere else
    writable = select.poll()
    writable.register(writer, select.POLLOUT)

    def put(message: Any, block: bool = True, timeout: float | None = None) -> None:  # as a queue has it
        if queue._thread is None and not queue._closed:  # noqa: SLF001  # likewise
            content = _pickled(message, pickle)
            if content is not None and len(content) <= _AT_ONCE and writable.poll(0):
                queue._sem.acquire()  # noqa: SLF001  # which its reader releases; it never has to wait
                with queue._wlock:  # noqa: SLF001  # of all processes that write
                    writer.send_bytes(content)
                return
        by_thread(message, block, timeout)

    return put


def _pickled(message: Any, pickle: Callable[[Any], memoryview]) -> memoryview | None:
    try:
        return pickle(message)
    except Exception as error:
        if is_death(error):  # which torch tells of between any two lines
            raise
        return None  # a user's object may raise anything, and the thread says it


def _waiter(reader: Any) -> Callable[..., bool]:
    """Return `reader.poll`, with one selector for all waits."""
    readable = select.poll()
    readable.register(reader, select.POLLIN)

    def poll(timeout: float | None = 0.0) -> bool:
        return bool(readable.poll(None if timeout is None else max(timeout, 0) * 1000))

    return poll
