"""Transport: small tensors leave a worker process by value, in the message that has the batch.

torch moves each tensor that is sent to a file of shared memory of its own, and sends its descriptor by a socket.
That takes some hundred microseconds of the training process for each tensor, whatever its size; bytes in the message
take less up to `LARGEST`. What is replaced is how a *storage* is pickled: all tensors are made of storages, so that
views, aliases, dtypes, layouts, subclasses and nesting stay what torch makes of them.

It concerns the answers of this package's workers only, and in their processes only: the training process is left as it
is, and so are queues of a user's own.

A worker whose parent was killed ends by itself, as torch has it, unless it waits for ever: to send more than the pipe
holds, whose other end stays open as the workers hold it for each other, or for the rest of a message that was cut. So a
thread looks for the parent, and ends what is still there some seconds later.

A queue of `multiprocessing` leaves each message to a thread, which is woken and then writes it, and makes a selector
for each wait. Requests are a few numbers, and answers may be small, too: writing what the pipe takes at once takes less
than waking the thread (`QuickLoader`). Workers that are not forked answer by their thread.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import select
import threading
import time
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import reduce_storage, reduce_tensor
from torch.utils.data import DataLoader
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from resumable._fetch.failures import is_death

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from resumable._stats import Made

    _Reduced: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
    from collections.abc import Callable

__all__ = ["LARGEST", "Answer", "QuickLoader", "begin", "pickled_here"]


LARGEST = 1 << 19  # bytes of a storage that go by value
_LOOK, _GRACE = 1.0, 10.0  # seconds from one look for the parent to the next; to come to an end by itself


class _Thread(threading.local):
    """What a thread pickles: a queue has one of its own, so one that has pickled an answer pickles nothing else.

    Attributes:
        answers: an answer, whose small storages go by value.
        shares: it may move large ones to shared memory.
    """

    answers = False
    shares = True


_thread = _Thread()


class Answer:
    """A batch that leaves a worker process; what arrives is the batch as it was made.

    Args:
        made: the batch.
    """

    __slots__ = ("_made",)

    def __init__(self, made: Made) -> None:
        self._made = made

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the batch, with its small storages by value from here on."""
        _thread.answers = True
        return type(self._made), tuple(self._made)


class _SharedError(Exception):
    """A storage would have to be moved to shared memory."""


def pickled_here(message: Any) -> memoryview:
    """Pickle a message with an answer in the thread that makes it, which may pickle other things afterwards.

    Raises:
        _SharedError: all of it cannot go by value; nothing was shared.
    """
    _thread.shares = False
    try:
        return ForkingPickler.dumps(message)
    finally:
        _thread.answers, _thread.shares = False, True


def begin() -> None:
    """Send small tensors by value from now on; called in each worker process before it reads."""
    threading.Thread(target=_leave_when_orphaned, daemon=True).start()
    ForkingPickler.register(torch.UntypedStorage, _reduced)
    ForkingPickler.register(torch.Tensor, _reduced_tensor)
    if default_collate_fn_map.get(torch.Tensor) is collate_tensor_fn:  # else a user's
        default_collate_fn_map[torch.Tensor] = _stacked


def _leave_when_orphaned() -> None:
    """End this process if the one that reads from it is gone, however it waits.

    That may have been killed before this one looks for the first time, and has another process in its place by then.
    """
    parent, reader = os.getppid(), multiprocessing.parent_process()
    while os.getppid() == parent and (reader is None or reader.pid is None or _exists(reader.pid)):
        time.sleep(_LOOK)
    time.sleep(_GRACE)
    os._exit(1)


def _goes_by_value(storage: torch.UntypedStorage) -> bool:
    return (
        _thread.answers
        and 0 < storage.nbytes() <= LARGEST
        and storage.device.type == "cpu"
        and not storage.is_shared()
        and storage.data_ptr() != 0
    )


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _reduced(storage: torch.UntypedStorage) -> _Reduced:
    """Reduce a storage to its bytes; as torch does it where it is large, in shared memory already, or on a device."""
    if not _goes_by_value(storage):
        if not _thread.shares:
            raise _SharedError
        reduced: _Reduced = reduce_storage(storage)  # type: ignore[no-untyped-call]
        return reduced
    return _received, (ctypes.string_at(storage.data_ptr(), storage.nbytes()),)


def _reduced_tensor(tensor: torch.Tensor) -> _Reduced:
    """Reduce a plain tensor to its storage and its shape, which is put together in half the time; else as torch does.

    The storage is an object of its own, so that another tensor of the same memory, however that is reduced, gets the
    same one.
    """
    if _is_plain(tensor) and not tensor.requires_grad and _goes_by_value(storage := tensor.untyped_storage()):
        return _put_together, (storage, tensor.dtype, tensor.storage_offset(), tuple(tensor.size()), tensor.stride())
    reduced: _Reduced = reduce_tensor(tensor)  # type: ignore[no-untyped-call]
    return reduced


def _put_together(
    storage: Any, dtype: torch.dtype, offset: int, size: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, offset, size, stride)


def _received(content: bytes) -> torch.UntypedStorage:
    """Make a storage as torch allocates it: writable, aligned, and of this process alone."""
    storage = torch.UntypedStorage(len(content), device="cpu")  # type: ignore[no-untyped-call]
    ctypes.memmove(storage.data_ptr(), content, len(content))
    return storage


def _stacked(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    """Collate tensors as torch does it in a worker, but small ones in memory that is not shared."""
    first = batch[0]
    if not _is_plain(first) or sum(tensor.numel() for tensor in batch) * first.element_size() > LARGEST:
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    out = torch.empty((len(batch), *first.size()), dtype=first.dtype, device="cpu")
    return torch.stack(batch, 0, out=out)  # type: ignore[arg-type]  # a list, as torch has it


def _is_plain(tensor: Any) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.is_nested or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


_AT_ONCE = getattr(select, "PIPE_BUF", 512) - 4  # bytes that a pipe takes at once if it takes any, less their length


class QuickLoader(DataLoader[Any]):
    """A `DataLoader` whose iterator and workers write small messages themselves."""

    def _get_iterator(self) -> Any:
        if not self.num_workers or not hasattr(select, "poll"):  # Windows has none
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return _QuickIterator(self)


class _QuickIterator(_MultiProcessingDataLoaderIter):
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
