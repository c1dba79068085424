"""Stalls: if `next()` waits far too long, a log line says for which batch and which worker, and in which code.

One thread per process watches the open streams that asked for it (`stall_after`). It sleeps until a wait can exceed its
limit, so it wakes up about once per limit. The garbage collector may run at any point, even while the lock is held. So
code that it may run takes no lock.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakMethod, ref

from resumable._introspection import shorten

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable._fetch.fetcher import Fetcher
    from resumable._order.cursor import Cursor
    from resumable._order.world import World
    from resumable._stats import Stopwatch

__all__ = ["Awaited", "answer", "answers_awaited", "awaited", "dump_stack", "follow", "leave", "shortened"]

# A real-time signal: schedulers and trainers use SIGUSR1 and SIGUSR2, which also reach the workers of a job.
_SIGNAL = signal.SIGRTMIN + 9 if hasattr(signal, "SIGRTMIN") else None
_STDERR = 2
_WRITES = 2.0  # seconds that a process gets to write its stack
_SHOWN = 32  # indices of a batch in a message

answers_awaited: dict[int, Any] = {}  # by thread, the `DataLoader` iterator with workers that it waits for


class Awaited(NamedTuple):
    """The batch that a thread waits for.

    Args:
        place: of the batch; None after the last batch of an epoch.
        epoch: of the batch.
        world: the rank that waits.
        indices: of the batch's samples on this rank; None if the source has none.
        thread: the waiting thread.
    """

    place: Cursor | None
    epoch: int
    world: World
    indices: list[int] | None
    thread: int


def answer() -> None:
    """Let a worker process write its stack to stderr when the training process asks for it."""
    if _SIGNAL is not None:
        faulthandler.register(_SIGNAL, file=_STDERR, all_threads=True)


def dump_stack(pid: int) -> str:
    """Let a worker process write its stack to stderr, wait until it is done, and describe where the stack is."""
    if _SIGNAL is None or not _has(pid, "SigCgt"):
        return "unknown, because the process does not answer signals"
    with suppress(OSError):
        os.kill(pid, _SIGNAL)
    until = perf_counter() + _WRITES
    while perf_counter() < until and _status(pid, "State") != "Z":
        sleep(0.01)
        if not any(_has(pid, where) for where in ("SigPnd", "ShdPnd", "SigBlk")):
            return "on stderr: the process has just written it"
    return "unknown: the process does not run, for example because it is stopped or waits for a device"


def awaited(fetcher: Fetcher, cursor: Cursor, global_batch: int, thread: int) -> Awaited:
    """Describe the batch for which a thread waits at a position."""
    world, indices = fetcher.world(), None
    over = fetcher.finished(cursor, global_batch)
    tell = getattr(fetcher, "sample_indices", None)
    if tell is not None and not over:
        with suppress(Exception):  # a user's sampler, which may not support being called from a different thread
            indices = tell(cursor, fetcher.plan(global_batch), world)
    return Awaited(None if over else cursor, cursor.epoch, world, indices, thread)


def follow(stream: object, stopwatch: Stopwatch, limit: float, tell: Callable[[], Awaited]) -> None:
    """Report waits above a limit from now on, until `leave`, or until the stream is gone.

    Args:
        stream: what is read.
        stopwatch: knows when a wait started.
        limit: seconds.
        tell: a method that describes what is awaited; called from a different thread.
    """
    _watchdog.follow(id(stream), _Followed(stream, stopwatch, limit, tell))


def leave(stream: object) -> None:
    """Undo `follow`, if it was called."""
    _watchdog.leave(id(stream))


class _Followed:
    """One stream, and which of its waits were reported."""

    def __init__(self, stream: object, stopwatch: Stopwatch, limit: float, tell: Callable[[], Awaited]) -> None:
        key = id(stream)
        self._stream = ref(stream, lambda _: _watchdog.leave(key))
        self._stopwatch, self._limit = stopwatch, limit
        self._tell = WeakMethod(tell)
        self._since: float | None = None
        self._due = limit

    def look(self) -> float:
        """Report a wait that is due, and return the seconds until the next check."""
        since = self._stopwatch.since
        if since is None:
            return self._limit
        if since != self._since:
            self._since, self._due = since, self._limit
        waited = perf_counter() - since
        if waited >= self._due:
            while self._due <= waited:
                self._due *= 2
            self._report(since, waited)
        return max(since + self._due - perf_counter(), 0)

    def _report(self, since: float, waited: float) -> None:
        tell = self._tell()
        if tell is None:
            return
        about = tell()
        source, pid = _waited_for(about.thread)
        if self._stopwatch.since != since:
            return  # the batch has arrived meanwhile
        import logging  # noqa: PLC0415  # only needed for a report

        logging.getLogger("resumable").warning("%s", _message(about, waited, self._limit, source))
        if pid is not None and _SIGNAL is not None:
            with suppress(OSError):
                os.kill(pid, _SIGNAL)


class _Watchdog:
    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start over: in a forked process, the thread and the followed streams belong to the parent."""
        self._lock = threading.Lock()
        self._followed: dict[int, _Followed] = {}
        self._wake: SimpleQueue[None] = SimpleQueue()  # its put() may interrupt itself, unlike an Event's set()
        self._thread: threading.Thread | None = None

    def follow(self, key: int, followed: _Followed) -> None:
        with self._lock:
            self._followed[key] = followed
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="resumable stalls", daemon=True)
                self._thread.start()
        self._wake.put(None)

    def leave(self, key: int) -> None:
        if self._followed.pop(key, None) is not None:
            self._wake.put(None)

    def _watch(self) -> None:
        while True:
            with self._lock:
                if not self._followed:
                    self._thread = None
                    return
            pause = min((followed.look() for followed in list(self._followed.values())), default=0.0)
            with suppress(Empty):
                self._wake.get(timeout=pause)


_watchdog = _Watchdog()

if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_watchdog.forget)


def _waited_for(thread: int) -> tuple[str, int | None]:
    """Describe what a thread waits for, and return the process that can write its stack, if there is one."""
    answers = answers_awaited.get(thread)
    if answers is not None:
        with suppress(Exception):  # they may change meanwhile
            from resumable._torch_private import awaited_worker  # noqa: PLC0415  # PyTorch is loaded: it has workers

            number, pid = awaited_worker(answers)
            name = f"worker {number}, process {pid}"
            if _has(pid, "SigCgt"):
                return f"{name}, which writes its stack to stderr", pid
            return f"{name}; its stack is shown by `py-spy dump --pid {pid}`", None
    frame = sys._current_frames().get(thread)  # noqa: SLF001  # the documented way to get it
    stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
    return f"this process:\n{stack.rstrip()}", None


def _has(pid: int, signals: str) -> bool:
    """Return whether our signal is caught, pending or blocked in a process. If uncaught, it would kill the process."""
    return _SIGNAL is not None and bool(int(_status(pid, signals) or "0", 16) >> (_SIGNAL - 1) & 1)


def _status(pid: int, name: str) -> str | None:
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
        return next(line for line in lines if line.startswith(f"{name}:")).split()[1]
    return None


def _message(about: Awaited, waited: float, limit: float, source: str) -> str:
    where = "the end of the epoch" if about.place is None else f"step {about.place.step}"
    samples = "" if about.indices is None else f"  samples:     {shortened(about.indices)}\n"
    return (
        f"next() has waited {waited:.3g} s for a batch (stall_after={limit:g}).\n"
        f"  batch:       epoch {about.epoch}, {where}\n{samples}"
        f"  rank:        {about.world.rank} of {about.world.size}\n"
        f"  waiting for: {source}\n"
        "The loop continues once the batch is there. Check whether the storage responds, and what the code above waits "
        "for. With timeout= set in the DataLoader, such a wait ends in a WorkerError."
    )


def shortened(indices: list[Any]) -> str:
    """Format the indices of a batch, or only the first of them if there are many."""
    more = len(indices) - _SHOWN
    shown = shorten(indices[:_SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown
