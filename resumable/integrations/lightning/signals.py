"""Signals that save: SLURM's requeue signal between two batches, and preemption on all ranks together."""

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
    """Replaces Lightning's handler of SLURM's requeue signal, if there is one, and defers the signal to a batch's end.

    Lightning saves inside the handler, even in the middle of an optimizer step, with half of the weights updated. So
    the signal waits until all work after the batch is done.

    Args:
        trainer: with its handlers set. It restores the earlier handlers when it ends.
        handle: called with Lightning's handler as soon as a save is safe.
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
        """Defer the signal from now on, after handling one from the previous batch."""
        self.release()
        self._training = True

    def release(self) -> None:
        """Handle the signal if it has arrived: all callbacks are done with the batch."""
        self._training = False
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._handle(waiting)


class TrainerPreemption:
    """Lets all ranks save and stop before the same batch, with `resumable.preemption`.

    It replaces Lightning's handlers during training, because those save or broadcast immediately, wherever each rank is
    in its code. Lightning still handles Ctrl-C.

    Args:
        trainer: the Trainer, which is training.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._begun = 0  # batches, of this run
        self._stop: Preemption | None = preemption([signal.SIGTERM, signal.SIGUSR1]).__enter__()

    def begin_batch(self) -> None:
        """Save and exit if all ranks stop here: all callbacks are done with the previous batch."""
        self._begun += 1
        if self._stop is not None and self._stop.reached(self._begun):
            self._trainer.save_checkpoint(private.sigterm_path(self._trainer))
            self._stop.exit()

    def end(self) -> None:
        """Restore the previous signal handlers."""
        stop, self._stop = self._stop, None
        if stop is not None:
            stop.__exit__(None, None, None)
