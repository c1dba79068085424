"""One rank's failure ends all of them, by name, also where the others hang in a collective."""

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
_LINGER = 3  # looks of the others for which the rank that hosts the store waits with its own end


@contextmanager
def fail_together(*, every: float = 0.5, patience: float = 10.0, exit_code: int = 1) -> Iterator[None]:
    """End all ranks when one of them raises, with its number and its error.

        with resumable.distributed.fail_together():
            train()

    A rank whose exception leaves the block leaves word of it in the store of the process group. On the others a thread
    looks for that: it interrupts the main thread, and where this is inside of a collective that does not return, it
    logs the error and ends the process. What leaves the block there is a `RankFailedError`, raised from whatever came
    up meanwhile ("Connection closed by peer", a time-out, the interrupt).

    Without a process group, or with one rank, it does nothing. A rank that is killed leaves no word.

    Args:
        every: seconds between two looks.
        patience: seconds in which the main thread may come to its end, before the process is ended.
        exit_code: with which it is ended.

    Raises:
        RankFailedError: another rank has failed.
        RankMismatchError: another rank has found that the ranks differ.
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
            time.sleep(_LINGER * every)  # it hosts the store, as a rule
        raise
    finally:
        thread.end()


class _Looks(threading.Thread):
    """Looks for word of other ranks by a connection of its own, where the store can give one.

    Attributes:
        word: the error that says what another rank has left word of.
    """

    def __init__(self, store: Any, rank: int, every: float, patience: float, exit_code: int) -> None:
        super().__init__(name="resumable-fail-together", daemon=True)
        self._posts = Posts(store.clone() if hasattr(store, "clone") else store, EVERYONE)
        self._rank, self._every, self._patience, self._exit_code = rank, every, patience, exit_code
        self._over = threading.Event()
        self.word: RankError | None = None

    def end(self) -> None:
        """Let the thread end; the process is not ended by it from now on."""
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
            _log.critical("%s\nThis process did not come to its end in %g s, and is ended.", self.word, self._patience)
            sys.stderr.flush()
            os._exit(self._exit_code)
