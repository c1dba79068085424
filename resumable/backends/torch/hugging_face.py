"""Changes to Hugging Face's streams in a worker: the epoch is the worker's own, and a state goes to its own shards.

Private names of `datasets` (seen in 5.2): `_iter_pytorch`, `_prepare_ex_iterable_for_iteration`,
`_starting_state_dict`. Where one is missing, nothing is changed.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["keep_own_epochs", "mend_restoring"]


_ITERATE, _PREPARE, _STARTING = "_iter_pytorch", "_prepare_ex_iterable_for_iteration", "_starting_state_dict"
_OF_WORKER = "_resumable_of_worker"  # set on a stream from the start of `_iter_pytorch` to its first call of `_PREPARE`


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


def mend_restoring() -> None:
    """In a worker, or where one is played, let a stream's state go to the worker's own shards alone.

    In a worker, `datasets` gives the state to the stream of all shards, and then to that of the worker's own shards,
    whose state it is. Where a stream has a list of states, of which the worker's is another length, the first of the
    two fails, as for `shuffle(buffer_size=1)` and `concatenate_datasets`. What it is for is the second alone.
    """
    stream = getattr(sys.modules.get("datasets"), "IterableDataset", None)
    iterate, prepare = getattr(stream, _ITERATE, None), getattr(stream, _PREPARE, None)
    if stream is None or iterate is None or prepare is None or hasattr(prepare, "__wrapped__"):
        return

    @functools.wraps(iterate)
    def iterated(self: Any) -> Iterator[Any]:
        vars(self)[_OF_WORKER] = True
        try:
            yield from iterate(self)
        finally:
            vars(self).pop(_OF_WORKER, None)

    @functools.wraps(prepare)
    def prepared(self: Any, *args: Any, **options: Any) -> Any:
        state = getattr(self, _STARTING, None)
        if not vars(self).pop(_OF_WORKER, False) or state is None:
            return prepare(self, *args, **options)
        setattr(self, _STARTING, None)
        try:
            return prepare(self, *args, **options)
        finally:
            setattr(self, _STARTING, state)

    setattr(stream, _ITERATE, iterated)
    setattr(stream, _PREPARE, prepared)
