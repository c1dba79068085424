"""Saves that go on while the training does: one at a time, waited for at the exit, with errors for the next call."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  # it registers itself, and has to before `_at_exit` does: see there
import contextvars
import functools
import logging
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Background"]

_under_way: set[threading.Thread] = set()


class Background:
    """The save of one store that is under way, if any."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._process = os.getpid()

    def start(self, work: Callable[[], None], what: str) -> None:
        """Do it in a thread; the one before has been waited for."""

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  # the next call raises it
                self._error = error
                message = "%s failed in the background; the next call of the store raises it: %s"
                logging.getLogger("resumable").error(message, what, error)  # noqa: TRY400  # the traceback comes then
            finally:
                _under_way.discard(threading.current_thread())

        _wait_at_exit()
        context = contextvars.Context()  # no limit of the caller's
        self._process = os.getpid()
        self._thread = threading.Thread(target=context.run, args=(run,), name="resumable-save", daemon=True)
        _under_way.add(self._thread)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the save that is under way, and raise its error, once."""
        if self._process != os.getpid():  # in a fork, which has no thread of its parent's
            self._thread, self._error, self._process = None, None, os.getpid()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error


@functools.cache
def _wait_at_exit() -> None:
    """Register what waits, once: before the thread pools end, through which clients of object stores look up names.

    What `atexit` calls comes after their end.
    """
    getattr(threading, "_register_atexit", atexit.register)(_at_exit)


def _at_exit() -> None:
    for thread in tuple(_under_way):
        if thread.is_alive():
            thread.join()
