"""Failpoints: named points at which a chaos run observes a process, and can inject a fault into it.

They do nothing, and cost next to nothing, unless the environment variable `RESUMABLE_CHAOS` contains the path of a
chaos run's plan, or `RESUMABLE_CHECK` the folder of a check. `resumable.chaos` and `resumable check -- COMMAND` set
these for the processes that they start.
"""

from __future__ import annotations

import importlib
import os
import warnings
from typing import TYPE_CHECKING, Any

from resumable.errors import ChaosWarning

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CHECKED", "NOTICES", "POINTS", "VARIABLE", "activate", "notice", "point", "watch"]

VARIABLE = "RESUMABLE_CHAOS"
CHECKED = "RESUMABLE_CHECK"  # the folder of a check of a program

POINTS = {
    "loader.fetch": "before a batch is read",
    "loader.handed": "a batch was delivered",
    "loader.acked": "batches were acknowledged",
    "loader.epoch_end": "an epoch ended",
    "loader.state": "a state was taken",
    "loader.load": "a state is about to be loaded",
    "loader.loaded": "a state was loaded",
    "evaluation.handed": "a loader for evaluation delivered a batch",
    "store.save": "a checkpoint is about to be written",
    "store.half": "part of a checkpoint's data was written",
    "store.written": "a file was written, but is not durable yet",
    "store.synced": "a file is durable",
    "store.rename": "a file is about to be renamed to its final name",
    "store.renamed": "a file was renamed to its final name",
    "store.saved": "a checkpoint was committed, and older ones were removed",
    "store.load": "a checkpoint is about to be read",
    "store.loaded": "a checkpoint was read",
    "lightning.start": "the Trainer starts to train, from a checkpoint if there is one",
    "lightning.batch_start": "the Trainer starts a batch",
    "lightning.batch_end": "the Trainer has trained on a batch",
    "lightning.validation": "the Trainer starts a validation",
    "lightning.epoch_end": "the Trainer ends an epoch",
    "lightning.save": "the Trainer is about to write a checkpoint",
    "lightning.end": "the Trainer has finished",
    "torch.save.half": "torch.save has written the first half of a file directly under its final name",
    "torch.save.written": "torch.save, safetensors or Lightning wrote a file",
    "worker.start": "a worker process has started",
    "worker.read": "the samples of a batch are about to be read, in a worker or in the training process",
    "chaos.weights": "the script called resumable.chaos.record_weights",
}

NOTICES = {
    "loader.wrapped": "a loader was made",
    "store.opened": "a store was created or inspected: its root, its file system, and the root's path there",
    "lightning.load": "the Trainer is about to continue from a checkpoint",
}

_observer: Callable[[str, tuple[Any, ...]], None] | None = None
_listener: Callable[[str, tuple[Any, ...]], None] | None = None


def point(name: str, *about: Any) -> None:
    """Pass a failpoint.

    Args:
        name: one of `POINTS`.
        about: what an observer may want to see.
    """
    if _observer is not None:
        _observer(name, about)


def notice(name: str, *about: Any) -> None:
    """Report an event to the listener; it is not counted, and no fault is injected at it.

    Args:
        name: one of `NOTICES`.
        about: what a listener may want to see.
    """
    if _listener is not None:
        _listener(name, about)


def watch(
    observer: Callable[[str, tuple[Any, ...]], None] | None,
    listener: Callable[[str, tuple[Any, ...]], None] | None = None,
) -> None:
    """Call an observer at each failpoint from now on, and a listener at each notice; None to stop."""
    global _observer, _listener  # read a million times per second, so they are plain globals
    _observer, _listener = observer, listener


def activate() -> None:
    """Let a chaos run observe this process, or a check stop it at its first batch, if the environment refers to one.

    Warns:
        ChaosWarning: the plan does not exist or cannot be read: the chaos run is over, and nothing is watched.
    """
    if folder := os.environ.get(CHECKED):
        importlib.import_module("resumable._selfcheck.program").stop_at_first_batch(folder)
        return
    if not (path := os.environ.get(VARIABLE)):
        return
    agent = importlib.import_module("resumable.chaos.recorder.agent")
    try:
        plan = agent.read_plan(path)
    except (OSError, ValueError) as error:
        message = (
            f"the environment variable {VARIABLE} is set to {path}, which is not the plan of a chaos run: {error}.\n"
            f"Nothing is watched. A chaos run sets the variable for its own processes. Remove it: unset {VARIABLE}"
        )
        warnings.warn(message, ChaosWarning, stacklevel=2)
        return
    agent.start(path, plan)
