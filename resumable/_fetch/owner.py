"""Owner: one reader of a stream at a time, and none in another process than the one that opened it.

A thread that prefetches, or one that saves, may come between two batches. Two threads in one `next()` would each get a
batch, and the place would be that of whichever came last; a forked process would share the open files and the workers.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Owner"]


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
