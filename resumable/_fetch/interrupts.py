"""Signals that ask a job to end, in worker processes: they go on, so that the training process can come to its step.

Schedulers send a signal to every process of a job. A worker would end by it, and the training with the worker, before
anything is saved.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["heed", "heeded", "ignore", "outlive"]

_heeded: list[frozenset[int]] = []


def heed(signals: Iterable[int]) -> None:
    """Note that the training process handles these signals, and ends its workers itself."""
    _heeded.append(frozenset(signals))


def ignore(signals: Iterable[int]) -> None:
    """Note that it does not any longer."""
    _heeded.remove(frozenset(signals))


def heeded() -> frozenset[int]:
    """Return the signals that the training process handles now, or did when this process was forked."""
    return frozenset().union(*_heeded)


def outlive(signals: frozenset[int]) -> None:
    """Let this worker live on when it gets one of these signals, unless its parent sends SIGTERM."""
    for number in signals - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)
    if signal.SIGTERM in signals and hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # also in threads to come
        threading.Thread(target=_end_for_parent, name="resumable-sigterm", daemon=True).start()


def _end_for_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid not in (os.getppid(), 0):
        pass
    os._exit(0)  # as torch's own handler does
