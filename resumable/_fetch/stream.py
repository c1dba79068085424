"""The open stream of a Loader: one batch may be peeked at, one thread reads at a time, and only `close` may wait.

A thread that prefetches or saves may run between two batches. Two threads in one `next()` would each get a batch, and
the last one would set the position. A forked process would share the open files and workers.

The garbage collector may end an iteration at any point and in any thread, even in one that is just starting and holds
locks of the `threading` module. Waiting for a thread there may deadlock: only `close` waits.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from resumable._fetch.stalls import leave
from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from resumable._order.cursor import Cursor
    from resumable._stats import Meter

__all__ = ["Owner", "Stream", "close", "may_wait"]


class Stream:
    """Batches of one epoch, each with the cursor after it.

    Args:
        batches: a fetcher's generator.
        meter: is notified of each delivery; None without worker processes.
    """

    def __init__(self, batches: Iterator[tuple[Any, Cursor]], meter: Meter | None = None) -> None:
        self._batches, self._meter = batches, meter
        self._ahead: tuple[Any, Cursor] | None = None

    @property
    def is_ahead(self) -> bool:
        """Whether a batch was peeked at but not delivered, so the source is one batch ahead."""
        return self._ahead is not None

    def refuse_inside(self) -> None:
        """Reject calls that are not possible while a batch is being read.

        Raises:
            UnsupportedError: a batch is being read.
        """
        if self._batches.gi_running:  # type: ignore[attr-defined]  # fetchers are generators
            raise UnsupportedError(
                "close() was called while the loader was reading a batch, by the code that reads it or by a signal "
                "handler.\n"
                "A stream cannot end inside its own next(). Raise an exception there, as sys.exit() does: that also "
                "ends the stream."
            )

    def take(self) -> tuple[Any, Cursor]:
        """Return the next batch to deliver.

        Raises:
            StopIteration: the epoch is over.
        """
        if self._ahead is None:
            taken = next(self._batches)
        else:
            taken, self._ahead = self._ahead, None
        if self._meter is not None:
            self._meter.deliver()
        return taken

    def peek(self) -> Any:
        """Return the batch that `take` will return.

        Raises:
            StopIteration: the epoch is over.
        """
        if self._ahead is None:
            self._ahead = next(self._batches)
        return self._ahead[0]

    def put_back(self, batch: Any, cursor: Cursor) -> None:
        """Put a batch back that was taken but did not reach its loop: `take` returns it again."""
        self._ahead = batch, cursor

    def close(self) -> None:
        """Close the source, which may wait for its threads and workers."""
        leave(self)
        close(self._batches)  # type: ignore[arg-type]  # fetchers are generators


_READ_MEANWHILE = (
    "a batch was requested while a different thread was reading one from this loader.\n"
    "  reading:      {}\n  requested by: {}\n"
    "One would overwrite the position of the other, and a batch would be repeated or lost. Let one thread read at a "
    "time, for example with a lock, or use a separate Loader in each."
)
_CLOSED_MEANWHILE = (
    "the loader was closed while a different thread was reading a batch from it.\n"
    "  reading:   {}\n  closed by: {}\n"
    "Its stream would end in the middle of that batch. Stop that thread first, for example with a flag that it checks "
    "between two batches, and close the loader then."
)

_process = [os.getpid()]  # read once per process, because each call is a system call


def _forked() -> None:
    _process[0] = os.getpid()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_forked)


class Owner:
    """Which thread reads now. It costs less than 1 µs per batch."""

    __slots__ = ("_lock", "_opener", "_process", "_reader")

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant, so an interrupted thread does not lock itself out
        self._process = self._opener = 0
        self._reader = 0

    @property
    def reader(self) -> int:
        """The thread that reads now, or did so last."""
        return self._reader

    def opened(self) -> None:
        """Note in which process a stream is opened."""
        self._process = self._opener = _process[0]

    def closed(self) -> None:
        """Note that no stream is open, so any process may open one."""
        self._process = 0

    @property
    def is_elsewhere(self) -> bool:
        """Whether the stream was opened in a different process, from which this one was forked."""
        return self._process not in {0, _process[0]}

    @property
    def is_copy(self) -> bool:
        """Whether a different process opened the last stream, so anything left of it belongs to that process."""
        return self._opener not in {0, _process[0]}

    def enter(self, *, closes: bool = False) -> None:
        """Start to read, or to close what is read.

        Args:
            closes: for the message.

        Raises:
            UnsupportedError: a different thread is reading, or the stream belongs to a different process.
        """
        if self._process != _process[0] and self._process:
            raise UnsupportedError(
                "a batch was requested in a different process from the one that reads this loader.\n"
                f"  opened in process:    {self._process}\n  requested in process: {_process[0]}\n"
                "Both would share its files and its workers, and read the same batches. Wrap the source in the new "
                "process, or fork before the first batch is read."
            )
        if not self._lock.acquire(blocking=False):
            told = _CLOSED_MEANWHILE if closes else _READ_MEANWHILE
            raise UnsupportedError(told.format(_name(self._reader), _name(threading.get_ident())))
        self._reader = threading.get_ident()

    def leave(self) -> None:
        """Undo `enter`."""
        self._lock.release()

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Prevent other threads from reading until the code inside is done.

        Raises:
            UnsupportedError: a thread is reading.
        """
        self.enter(closes=True)
        try:
            yield
        finally:
            self.leave()


def _name(ident: int) -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return f"thread {names.get(ident, ident)!r}"


_closing = threading.local()


def close(generator: Generator[Any, None, None]) -> None:
    """Close a generator, which may wait for its threads while closing."""
    before = may_wait()
    _closing.by_hand = True
    try:
        generator.close()
    finally:
        _closing.by_hand = before


def may_wait() -> bool:
    """Tell a generator that is being closed whether it may wait for its threads: only during `close`."""
    return getattr(_closing, "by_hand", False)
