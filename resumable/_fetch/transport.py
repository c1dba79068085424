"""Transport: worker processes send small tensors by value, in the message with the batch.

PyTorch moves each tensor that is sent to a separate file in shared memory, and sends its descriptor over a socket. That
costs the training process a few hundred µs per tensor, whatever its size. Bytes in the message cost less, up to
`LARGEST`. Only the pickling of a *storage* is replaced. All tensors are made of storages, so views, aliases, dtypes,
layouts, subclasses and nesting stay the same as with PyTorch.

Only answers of this package's workers are affected, and only in the worker processes. The training process and a user's
own queues stay unchanged.

A queue of `multiprocessing` leaves each message to a thread, which must wake up before it writes, and creates a
selector for each wait. Requests are a few numbers, and answers can also be small: it is faster to write them directly
if the pipe has room (`QuickLoader`).
"""

from __future__ import annotations

import ctypes
import select
import threading
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing import reductions
from torch.utils.data import DataLoader

from resumable._fetch.failures import is_death
from resumable._torch_private import WorkersIterator, requests_of, torchs_collate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from resumable._stats import Made

    _Reduced: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
    from collections.abc import Callable

__all__ = ["LARGEST", "Answer", "ByValue", "QuickLoader", "begin", "pickled_here"]


LARGEST = 1 << 19  # bytes of a storage that are sent by value


class _Thread(threading.local):
    """Pickling flags of a thread. A queue has its own thread, so one that has pickled an answer pickles only answers.

    Attributes:
        answers: the thread pickles an answer, whose small storages are sent by value.
        shares: it may move large storages to shared memory.
    """

    answers = False
    shares = True


_thread = _Thread()


class Answer:
    """A batch that leaves a worker process; it arrives as the original batch.

    Args:
        made: the batch.
    """

    __slots__ = ("_made",)

    def __init__(self, made: Made) -> None:
        self._made = made

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the batch, with small storages by value from here on."""
        _thread.answers = True
        return type(self._made), tuple(self._made)


class _SharedError(Exception):
    """A storage would need to be moved to shared memory."""


def pickled_here(message: Any) -> memoryview:
    """Pickle a message with an answer in the thread that made it, which may pickle other things later.

    Raises:
        _SharedError: not all of it can be sent by value; nothing was shared.
    """
    _thread.shares = False
    try:
        return ForkingPickler.dumps(message)
    finally:
        _thread.answers, _thread.shares = False, True


def begin() -> None:
    """Send small tensors by value from now on; called in each worker process before it reads."""
    ForkingPickler.register(torch.UntypedStorage, _reduced)
    ForkingPickler.register(torch.Tensor, _reduced_tensor)
    if torchs_collate is None:
        return
    known = torchs_collate.default_collate_fn_map
    if known.get(torch.Tensor) is torchs_collate.collate_tensor_fn:  # otherwise a user replaced it
        known[torch.Tensor] = _stacked


class ByValue:
    """A `worker_init_fn` whose worker sends small tensors by value.

    Args:
        function: called next; None if there is none.
    """

    def __init__(self, function: Callable[[int], None] | None) -> None:
        self.function = function

    def __call__(self, worker: int) -> None:
        """Run in a worker."""
        begin()
        if self.function is not None:
            self.function(worker)


def _goes_by_value(storage: torch.UntypedStorage) -> bool:
    return (
        _thread.answers
        and 0 < storage.nbytes() <= LARGEST
        and storage.device.type == "cpu"
        and not storage.is_shared()
        and storage.data_ptr() != 0
    )


def _reduced(storage: torch.UntypedStorage) -> _Reduced:
    """Reduce a storage to its bytes, or as PyTorch does if it is large, already in shared memory, or on a device."""
    if not _goes_by_value(storage):
        if not _thread.shares:
            raise _SharedError
        reduced: _Reduced = reductions.reduce_storage(storage)  # type: ignore[no-untyped-call]
        return reduced
    return _received, (ctypes.string_at(storage.data_ptr(), storage.nbytes()),)


def _reduced_tensor(tensor: torch.Tensor) -> _Reduced:
    """Reduce a plain tensor to its storage and shape, which halves the time to rebuild it; else as PyTorch does.

    The storage is a separate object, so any other tensor that shares its memory gets the same storage.
    """
    if _is_plain(tensor) and not tensor.requires_grad and _goes_by_value(storage := tensor.untyped_storage()):
        return _put_together, (storage, tensor.dtype, tensor.storage_offset(), tuple(tensor.size()), tensor.stride())
    reduced: _Reduced = reductions.reduce_tensor(tensor)  # type: ignore[no-untyped-call]
    return reduced


def _put_together(
    storage: Any, dtype: torch.dtype, offset: int, size: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, offset, size, stride)


def _received(content: bytes) -> torch.UntypedStorage:
    """Make a storage like one that PyTorch allocates: writable, aligned, and not shared."""
    storage = torch.UntypedStorage(len(content), device="cpu")  # type: ignore[no-untyped-call]
    ctypes.memmove(storage.data_ptr(), content, len(content))
    return storage


def _stacked(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    """Collate tensors as PyTorch does in a worker, but small ones in memory that is not shared."""
    first = batch[0]
    if not _is_plain(first) or sum(tensor.numel() for tensor in batch) * first.element_size() > LARGEST:
        return torchs_collate.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    out = torch.empty((len(batch), *first.size()), dtype=first.dtype, device="cpu")
    return torch.stack(batch, 0, out=out)  # type: ignore[arg-type]  # a list, as in PyTorch


def _is_plain(tensor: Any) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.is_nested or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


_AT_ONCE = getattr(select, "PIPE_BUF", 512) - 4  # bytes that a pipe always takes in one write, minus the length prefix


class QuickLoader(DataLoader[Any]):
    """A `DataLoader` whose iterator and workers write small messages themselves."""

    def _get_iterator(self) -> Any:
        if not self.num_workers or not hasattr(select, "poll"):  # Windows has none
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return _QuickIterator(self)


class _QuickIterator(WorkersIterator):
    @property
    def _worker_result_queue(self) -> Any:
        return self._results

    @_worker_result_queue.setter
    def _worker_result_queue(self, queue: Any) -> None:  # before the workers start, which inherit it when forked
        queue.put = _putter(queue, pickled_here)
        self._results = queue

    def _reset(self, loader: Any, first_iter: bool = False) -> None:  # PyTorch's signature
        if first_iter:  # before the first request, so no queue has started its thread
            for queue in requests_of(self):
                queue.put = _putter(queue)
            self._results._poll = _waiter(self._results._reader)  # noqa: SLF001  # the queue keeps its own `poll` there
        super()._reset(loader, first_iter)


def _putter(queue: Any, pickle: Callable[[Any], memoryview] = ForkingPickler.dumps) -> Callable[..., None]:
    """Return a `put` that writes directly, unless the message is large, the pipe is full, or an earlier one was queued.

    After the first queued message, all messages go through the queue's thread, to keep their order.
    """
    by_thread, writer = queue.put, queue._writer  # noqa: SLF001  # the ends of the pipe are nowhere else
    writable = select.poll()
    writable.register(writer, select.POLLOUT)

    def put(message: Any, block: bool = True, timeout: float | None = None) -> None:  # a queue's signature
        if queue._thread is None and not queue._closed:  # noqa: SLF001  # nothing public has it
            content = _small(message, pickle)
            if content is not None and writable.poll(0):
                queue._sem.acquire()  # noqa: SLF001  # which its reader releases; it never waits here
                with queue._wlock:  # noqa: SLF001  # shared by all processes that write
                    writer.send_bytes(content)
                return
        by_thread(message, block, timeout)

    return put


def _small(message: Any, pickle: Callable[[Any], memoryview]) -> bytes | None:
    """Pickle a message; None if it is too large for one write, or cannot be pickled."""
    try:
        with pickle(message) as view:  # of a buffer: if a failed write kept both in a cycle, Python 3.12.1 would crash
            return bytes(view) if len(view) <= _AT_ONCE else None
    except Exception as error:
        if is_death(error):  # PyTorch's signal handler raises it between any two lines
            raise
        return None  # a user's object may raise anything, and the queue's thread reports it


def _waiter(reader: Any) -> Callable[..., bool]:
    """Return `reader.poll`, with one selector for all waits."""
    readable = select.poll()
    readable.register(reader, select.POLLIN)

    def poll(timeout: float | None = 0.0) -> bool:
        return bool(readable.poll(None if timeout is None else max(timeout, 0) * 1000))

    return poll
