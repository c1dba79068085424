"""Inbox: reads what worker processes send, so that one that dies or stops in the middle of it keeps nobody waiting.

A queue of `multiprocessing` waits for ever for the rest of a message that it has begun to read. It also does so while
it makes a tensor of a message, for which it asks the process that sent it. torch gets out of the first by an exception
of a signal's handler, which may come up anywhere in the program; it does not get out of the second.
"""

from __future__ import annotations

import os
import struct
import threading
from multiprocessing.connection import wait
from pickle import loads  # what a queue of `multiprocessing` uses
from queue import Empty
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Inbox", "Watch"]

_PIECE = 1 << 20
_SLICE = 0.2  # seconds after which a wait looks whether it is over
_DYING = 1.0  # seconds from the end of a process's connections to that of the process


class Inbox:
    """The receiving end of a queue that processes share; the queue's `get` is replaced by its own.

    Args:
        queue: of `multiprocessing`.

    Attributes:
        sentinels: of the processes that send.
        looks: end a wait where one of them ends.
        since: when a message began to be unpickled; None while none is.
        over: end every wait.
    """

    def __init__(self, queue: Any) -> None:
        self._reader, self._sem = queue._reader, queue._sem  # noqa: SLF001  # the ends of the pipe are nowhere else
        self._bytes = bytearray()
        self.sentinels: list[int] = []
        self.looks = True
        self.since: float | None = None
        self.over = False
        queue.get = self.get

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # as a queue has it
        """Return a message.

        Raises:
            Empty: none is there in time, or a process died.
        """
        until = monotonic() + (timeout or 0) if timeout is not None or not block else None
        while (message := self._cut()) is None:
            left = _SLICE if until is None else min(max(until - monotonic(), 0), _SLICE)
            ready = wait([self._reader, *(self.sentinels if self.looks else ())], left)
            if self._reader in ready:
                self._read()
            elif ready or self.over or (until is not None and monotonic() >= until):
                raise Empty
        return self._loads(message)

    def _read(self) -> None:
        piece = os.read(self._reader.fileno(), _PIECE)
        if not piece:
            raise Empty
        self._bytes += piece

    def _cut(self) -> bytes | None:
        """Take the first message off, once it is whole; with the length before it as `multiprocessing` writes it."""
        whole, begin = self._bytes, 4
        if len(whole) < begin:
            return None
        (size,) = struct.unpack_from("!i", whole)
        if size == -1:
            begin = 12
            if len(whole) < begin:
                return None
            (size,) = struct.unpack_from("!Q", whole, 4)
        if len(whole) < begin + size:
            return None
        message = bytes(memoryview(whole)[begin : begin + size])
        del whole[: begin + size]
        return message

    def _loads(self, message: bytes) -> Any:
        self._sem.release()
        self.since = monotonic()
        try:
            return loads(message)  # noqa: S301  # of our own processes
        except Exception as error:
            if wait(self.sentinels, _DYING):  # it died with what the message refers to
                raise Empty from error
            raise
        finally:
            self.since = None


class Watch(threading.Thread):
    """Ends processes where a message of theirs takes longer to be unpickled than a limit.

    Args:
        inbox: which unpickles.
        limit: seconds.
        kill: ends the processes; holds nothing that has this thread.
    """

    def __init__(self, inbox: Inbox, limit: float, kill: Callable[[], None]) -> None:
        super().__init__(name="resumable hanging workers", daemon=True)
        self._inbox, self._limit, self._kill = inbox, limit, kill
        self.over, self.found = threading.Event(), False

    def run(self) -> None:
        """Look from time to time."""
        while not self.over.wait(self._limit / 4):
            since = self._inbox.since
            if since is not None and monotonic() - since > self._limit:
                self.found = True
                self._kill()
                return
