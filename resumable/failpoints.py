"""Failpoints: named moments at which a chaos run watches a process, and can make something go wrong in it.

Nothing happens, and next to no time is lost, unless the environment variable `RESUMABLE_CHAOS` names the plan of a
chaos run; `resumable.chaos` sets it for the processes that it starts.
"""

from __future__ import annotations

import importlib
import os
import warnings
from typing import TYPE_CHECKING, Any

from resumable.errors import ChaosWarning

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NOTICES", "POINTS", "VARIABLE", "activate", "notice", "point", "watch"]

VARIABLE = "RESUMABLE_CHAOS"

POINTS = {
    "loader.fetch": "before a batch is read",
    "loader.handed": "a batch was delivered",
    "loader.acked": "batches were acknowledged",
    "loader.epoch_end": "an epoch came to its end",
    "loader.state": "a state was taken",
    "loader.load": "a state is about to be loaded",
    "loader.loaded": "a state was loaded",
    "evaluation.handed": "a batch was delivered by a loader for evaluation",
    "store.save": "a checkpoint is about to be written",
    "store.half": "a part of a checkpoint's data was written",
    "store.written": "a file was written, and is not durable yet",
    "store.synced": "a file is durable",
    "store.rename": "a file is about to get its name",
    "store.renamed": "a file got its name",
    "store.saved": "a checkpoint was committed, and older ones removed",
    "store.load": "a checkpoint is about to be read",
    "store.loaded": "a checkpoint was read",
    "lightning.start": "the Trainer begins to train, at the checkpoint's place if there is one",
    "lightning.batch_start": "the Trainer begins a batch",
    "lightning.batch_end": "the Trainer has trained on a batch",
    "lightning.validation": "the Trainer begins a validation",
    "lightning.epoch_end": "the Trainer ends an epoch",
    "lightning.save": "the Trainer is about to write a checkpoint",
    "lightning.end": "the Trainer has come to its end",
    "torch.save.half": "a file of torch.save, written under the name that it was given, has its first half",
    "torch.save.written": "a file of torch.save, safetensors or Lightning was written",
    "worker.start": "a worker process has started",
    "worker.read": "the samples of a batch are about to be read, in a worker or in the training process",
    "chaos.weights": "the script showed its weights by resumable.chaos.record_weights",
}

NOTICES = {
    "loader.wrapped": "a loader was made",
    "store.opened": "a store was made, or looked into: its root, its file system, and the root's path there",
    "lightning.load": "the Trainer is about to go on from a checkpoint",
}

_observer: Callable[[str, tuple[Any, ...]], None] | None = None
_listener: Callable[[str, tuple[Any, ...]], None] | None = None


def point(name: str, *about: Any) -> None:
    """Come by a failpoint.

    Args:
        name: one of `POINTS`.
        about: what an observer may want to see.
    """
    if _observer is not None:
        _observer(name, about)


def notice(name: str, *about: Any) -> None:
    """Tell the listener of something at which nothing goes wrong, so that it is not counted.

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
    """Call an observer at each failpoint from now on, and a listener at each notice; None for none."""
    global _observer, _listener  # read a million times per second, so nothing may stand between
    _observer, _listener = observer, listener


def activate() -> None:
    """Let a chaos run watch this process, if the environment names one.

    Warns:
        ChaosWarning: it names one whose plan is not there, or is none: it is over, and nothing is watched.
    """
    if not (path := os.environ.get(VARIABLE)):
        return
    agent = importlib.import_module("resumable.chaos.recorder.agent")
    try:
        plan = agent.read_plan(path)
    except (OSError, ValueError) as error:
        message = (
            f"the environment variable {VARIABLE} names {path}, which is no plan of a chaos run: {error}.\n"
            f"A chaos run sets it for the processes that it starts. Nothing is watched. Remove it: unset {VARIABLE}"
        )
        warnings.warn(message, ChaosWarning, stacklevel=2)
        return
    agent.start(path, plan)
