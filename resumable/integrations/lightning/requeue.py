"""Holds SLURM's requeue signal back until all is done after the batch.

Lightning saves inside the signal's handler, wherever the signal finds it: also in the middle of an optimizer step, with
half of the weights changed.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

from resumable.integrations.lightning import private

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RequeueSignal"]


class RequeueSignal:
    """Stands before Lightning's handler of the signal, if it has set one.

    Args:
        trainer: with its handlers set; it puts back the ones before them when it ends.
        handle: called with Lightning's handler, when it is time.
    """

    def __init__(self, trainer: Any, handle: Callable[[Callable[[], None]], None]) -> None:
        self._handle = handle
        self._training = False  # on a batch
        self._waiting: Callable[[], None] | None = None
        found = private.requeue_handler(trainer)
        if found is not None and threading.current_thread() is threading.main_thread():
            number, self._original = found
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: Any) -> None:
        def save() -> None:
            self._original(number, frame)

        if self._training:
            self._waiting = save
        else:
            self._handle(save)

    def begin_batch(self) -> None:
        """Hold the signal back from now on, and handle one that came in the batch before."""
        self.release()
        self._training = True

    def release(self) -> None:
        """Handle the signal if it came: all callbacks have done what they do after a batch."""
        self._training = False
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._handle(waiting)
