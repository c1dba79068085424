"""Signals that save: SLURM's requeue signal between two batches, and preemption on all ranks at once."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

from resumable.distributed.preemption import Preemption, preemption
from resumable.integrations.lightning import private

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RequeueSignal", "TrainerPreemption"]


class RequeueSignal:
    """Stands before Lightning's handler of SLURM's requeue signal, if it has set one.

    Lightning saves inside the handler, wherever the signal finds it: also in the middle of an optimizer step, with half
    of the weights changed. So the signal is held back until all is done after the batch.

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


class TrainerPreemption:
    """All ranks save and stop before the same batch, as `resumable.preemption` agrees.

    It listens from the begin of training to its end, in place of Lightning's handlers.

    Those save or broadcast inside of the handler, wherever the signal finds each rank. Ctrl-C stays Lightning's.

    Args:
        trainer: that trains now.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._begun = 0  # batches, of this run
        self._stop: Preemption | None = preemption([signal.SIGTERM, signal.SIGUSR1]).__enter__()

    def begin_batch(self) -> None:
        """Save and end the process where all ranks stop: all callbacks have done what they do after a batch."""
        self._begun += 1
        if self._stop is not None and self._stop.reached(self._begun):
            self._trainer.save_checkpoint(private.sigterm_path(self._trainer))
            self._stop.exit()

    def end(self) -> None:
        """Give the signals back."""
        stop, self._stop = self._stop, None
        if stop is not None:
            stop.__exit__(None, None, None)
