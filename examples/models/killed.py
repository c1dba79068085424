"""Kills a training run with SIGKILL, runs it again, and compares its last checkpoint with an uninterrupted run."""

from __future__ import annotations

import os
import signal
import tempfile
from itertools import count
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import register_optimizer_step_post_hook

import resumable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["compare"]

_KILLS = (3, 4)  # optimizer steps of the first and the second process


def compare(train: Callable[[str], None]) -> None:
    """Run a training without a kill, and one that is killed twice; raise if their final weights differ.

    Args:
        train: trains in a directory, from the checkpoint that it finds there.
    """
    with tempfile.TemporaryDirectory() as folder:
        for run, kill in (("baseline", 0), *(("killed", kill) for kill in _KILLS), ("killed", 0)):
            print(f"{run}:", flush=True)
            process = get_context("fork").Process(target=_train, args=(train, f"{folder}/{run}", kill))
            process.start()
            process.join()
        last: list[Any] = [resumable.CheckpointStore(f"{folder}/{run}").latest() for run in ("baseline", "killed")]
    baseline, killed = (one["model"] for one in last)
    if not all(value.equal(killed[name]) for name, value in baseline.items()):
        raise SystemExit("the weights differ")
    print("killed twice and resumed: the same weights, bit for bit")


def _train(train: Callable[[str], None], directory: str, kill: int) -> None:
    steps = count(1)

    def stop(*_: object) -> None:
        if next(steps) == kill:
            os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_post_hook(stop)
    train(directory)
