"""Ends all ranks when one fails, and reports which, even if the others hang in a collective."""

from __future__ import annotations

import _thread
import logging
import os
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from resumable._ranks.store import Posts, find_store
from resumable._ranks.watch import EVERYONE, post_failure, word_of_others
from resumable.errors import RankError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["fail_together"]

_log = logging.getLogger("resumable")
_LINGER = 3  # checks of the other ranks for which the rank that hosts the store delays its end


@contextmanager
def fail_together(*, every: float = 0.5, patience: float = 10.0, exit_code: int = 1) -> Iterator[None]:
    """End all ranks when one of them raises, and report its number and its error.

        with resumable.distributed.fail_together():
            train()

    If an exception leaves the block, the rank posts it to the store of the process group. On the other ranks, a thread
    checks for such posts and interrupts the main thread. If that is blocked in a collective, the thread logs the error
    and ends the process. Otherwise a `RankFailedError` leaves the block there. Its cause is the exception that was
    raised meanwhile ("Connection closed by peer", a time-out, the interrupt).

    Without a process group, or with one rank, it does nothing. A rank that is killed cannot post anything.

    Args:
        every: seconds between two checks.
        patience: seconds that the main thread may take to end, before the process is ended.
        exit_code: the exit code in that case.

    Raises:
        RankFailedError: a different rank has failed.
        RankMismatchError: a different rank has found that the ranks differ.
    """
    store = find_store()
    distributed: Any = sys.modules.get("torch.distributed")
    if store is None or distributed.get_world_size() == 1:
        yield
        return
    rank = distributed.get_rank()
    thread = _Looks(store, rank, every, patience, exit_code)
    thread.start()
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        thread.end()
        posts = Posts(store, EVERYONE)
        told = thread.word or word_of_others(posts, rank)
        if told is not None:
            raise told from error
        if isinstance(error, Exception) and not isinstance(error, RankError):
            post_failure(posts, rank, error, "")
        if rank == 0:
            time.sleep(_LINGER * every)  # it usually hosts the store
        raise
    finally:
        thread.end()


class _Looks(threading.Thread):
    """Checks for errors of other ranks, with a separate connection if the store supports it.

    Attributes:
        word: the error that a different rank has posted.
    """

    def __init__(self, store: Any, rank: int, every: float, patience: float, exit_code: int) -> None:
        super().__init__(name="resumable-fail-together", daemon=True)
        self._posts = Posts(store.clone() if hasattr(store, "clone") else store, EVERYONE)
        self._rank, self._every, self._patience, self._exit_code = rank, every, patience, exit_code
        self._over = threading.Event()
        self.word: RankError | None = None

    def end(self) -> None:
        """Let the thread end; from now on it does not end the process."""
        self._over.set()

    def run(self) -> None:
        while not self._over.wait(self._every):
            self.word = word_of_others(self._posts, self._rank)
            if self.word is not None:
                break
        if self.word is None or self._over.is_set():
            return
        _thread.interrupt_main()
        if not self._over.wait(self._patience):
            _log.critical("%s\nThis process did not finish within %g s, and is ended now.", self.word, self._patience)
            sys.stderr.flush()
            os._exit(self._exit_code)
