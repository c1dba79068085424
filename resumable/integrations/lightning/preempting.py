"""Preemption in the Trainer: all ranks save and stop before the same batch, as `resumable.preemption` agrees."""

from __future__ import annotations

import signal
from typing import Any

from resumable.distributed.preemption import Preemption, preemption
from resumable.integrations.lightning import private

__all__ = ["Preempting"]


class Preempting:
    """Listens from the begin of training to its end, in place of Lightning's handlers.

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
