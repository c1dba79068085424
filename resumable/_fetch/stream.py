"""The open stream of a Loader: one batch may be peeked at, one thread reads at a time, and who ends it may wait.

A thread that prefetches, or one that saves, may come between two batches. Two threads in one `next()` would each get a
batch, and the position would be that of whichever came last; a forked process would share the open files and workers.

The garbage collector ends an iteration at any moment and in any thread, also in one that is just starting and holds
locks of the `threading` module. Whoever waits for a thread there may wait forever: only `close` waits.
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
        meter: is told what is delivered; None where there are no worker processes.
    """

    def __init__(self, batches: Iterator[tuple[Any, Cursor]], meter: Meter | None = None) -> None:
        self._batches, self._meter = batches, meter
        self._ahead: tuple[Any, Cursor] | None = None

    @property
    def is_ahead(self) -> bool:
        """Whether a batch was looked at that is not delivered yet, so that the source stands after it."""
        return self._ahead is not None

    def refuse_inside(self) -> None:
        """Refuse what cannot be done while a batch is being read.

        Raises:
            UnsupportedError: one is.
        """
        if self._batches.gi_running:  # type: ignore[attr-defined]  # fetchers are generators
            raise UnsupportedError(
                "the loader was closed by what reads a batch of it, or by a signal's handler meanwhile.\n"
                "A stream cannot end inside of its own next(). Raise an exception there, as sys.exit() does: that ends "
                "the stream, too."
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
        """Put a batch back that was taken, and did not reach its loop: `take` returns it again."""
        self._ahead = batch, cursor

    def close(self) -> None:
        """Close the source, which may wait for its threads and workers."""
        leave(self)
        close(self._batches)  # type: ignore[arg-type]  # fetchers are generators


_READ_MEANWHILE = (
    "a batch was asked for while another thread was reading one from this loader.\n"
    "  reading:   {}\n  asked for: {}\n"
    "The place of one would overwrite that of the other, and a batch would be repeated or lost. Let one thread read at "
    "a time, for instance under a lock, or give each a Loader of its own."
)
_CLOSED_MEANWHILE = (
    "the loader was closed while another thread was reading a batch from it.\n"
    "  reading:   {}\n  closed by: {}\n"
    "Its stream would end inside of that batch. Let that thread end first, by a flag that it looks at between two "
    "batches, and close the loader then."
)

_process = [os.getpid()]  # asked for once per process, as each time is a call of the system


def _forked() -> None:
    _process[0] = os.getpid()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_forked)


class Owner:
    """Who reads now. It costs below a microsecond per batch."""

    __slots__ = ("_lock", "_opener", "_process", "_reader")

    def __init__(self) -> None:
        self._lock = threading.RLock()  # of a thread, so that one that was interrupted is not locked out by itself
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
        """Note that there is no stream any more, so that any process may open one."""
        self._process = 0

    @property
    def is_elsewhere(self) -> bool:
        """Whether the stream was opened in another process, of which this one is a copy."""
        return self._process not in {0, _process[0]}

    @property
    def is_copy(self) -> bool:
        """Whether the last stream was opened in another process, so that what is left of it belongs there."""
        return self._opener not in {0, _process[0]}

    def enter(self, *, closes: bool = False) -> None:
        """Begin to read, or to close what is read.

        Args:
            closes: for the message.

        Raises:
            UnsupportedError: another thread is reading, or the stream belongs to another process.
        """
        if self._process != _process[0] and self._process:
            raise UnsupportedError(
                "a batch was asked for in another process than the one that reads this loader.\n"
                f"  opened in the process: {self._process}\n  asked for in:          {_process[0]}\n"
                "Both would share its files and its workers, and read the same batches. Wrap the source in the new "
                "process, or fork before the first batch is read."
            )
        if not self._lock.acquire(blocking=False):
            told = _CLOSED_MEANWHILE if closes else _READ_MEANWHILE
            raise UnsupportedError(told.format(_name(self._reader), _name(threading.get_ident())))
        self._reader = threading.get_ident()

    def leave(self) -> None:
        """End what `enter` began."""
        self._lock.release()

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Let no other thread begin to read before what runs inside is done.

        Raises:
            UnsupportedError: one is reading.
        """
        self.enter(closes=True)
        try:
            yield
        finally:
            self.leave()


def _name(ident: int) -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return f"the thread {names.get(ident, ident)!r}"


_closing = threading.local()


def close(generator: Generator[Any, None, None]) -> None:
    """Close a generator, which may wait for its threads meanwhile."""
    before = may_wait()
    _closing.by_hand = True
    try:
        generator.close()
    finally:
        _closing.by_hand = before


def may_wait() -> bool:
    """Tell a generator that is being closed whether it may wait for its threads: whether `close` is at work."""
    return getattr(_closing, "by_hand", False)
