"""How workers tell their datasets the epoch, where several processes share the memory that holds it."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing import get_context

from resumable._introspection import ask

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

__all__ = ["EpochTeller", "keep_own_epochs"]


class EpochTeller:
    """Calls `set_epoch` in every worker: in one of them alone, and then in the others.

    A dataset may keep its epoch in memory that its workers share, and `set_epoch` may add to what is there. Two workers
    that did so at once would add twice. After the first of them, the others only write what is there already, so they
    need not wait for each other, and none of them disturbs one that has begun to read.

    Args:
        loader: the user's; the lock is of its workers' kind.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._told: Any = None
        if loader.num_workers > 1:  # asking for the context settles it for the whole process
            context: Any = loader.multiprocessing_context or get_context()
            self._told = context.Value("q", -1)

    def tell(self, dataset: Any, epoch: int) -> None:
        """Tell a dataset the epoch, if it wants to be told."""
        set_epoch = ask(dataset, "set_epoch")
        if not callable(set_epoch):
            return
        if self._told is not None:
            with self._told.get_lock():
                if self._told.value != epoch:
                    set_epoch(epoch)
                    self._told.value = epoch
                    return
        set_epoch(epoch)


def keep_own_epochs() -> None:
    """In a worker, let each epoch that a Hugging Face stream is told there be this worker's alone.

    Its memory is shared so that the training process can tell persistent workers, and stays so where only the training
    process tells it. But a dataset around the stream may tell it at a time of its own, as those do that repeat their
    data in `__iter__`, and another loader over the same stream may be in another epoch.
    """
    stream = getattr(sys.modules.get("datasets"), "IterableDataset", None)
    tell = getattr(stream, "set_epoch", None)
    if stream is None or tell is None:
        return

    @functools.wraps(tell)
    def set_epoch(self: Any, epoch: int) -> None:
        memory = getattr(self, "_epoch", None)
        if isinstance(memory, torch.Tensor):
            self._epoch = memory.clone()  # a clone is not shared
        tell(self, epoch)

    stream.set_epoch = set_epoch
