"""Changes to Hugging Face streams in a worker: each worker has its own epoch, and a state reaches its own shards only.

Uses private names of `datasets` (seen in 5.2): `_iter_pytorch`, `_prepare_ex_iterable_for_iteration`,
`_starting_state_dict`. If one is missing, nothing is changed.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["keep_own_epochs", "restore_own_shards"]


_ITERATE, _PREPARE, _STARTING = "_iter_pytorch", "_prepare_ex_iterable_for_iteration", "_starting_state_dict"
_OF_WORKER = "_resumable_of_worker"  # set on a stream from the start of `_iter_pytorch` to its first call of `_PREPARE`


def keep_own_epochs() -> None:
    """In a worker, keep the epoch of a Hugging Face stream private to that worker.

    The epoch is in shared memory so the training process can set it for persistent workers. That stays so if only the
    training process sets it. But a dataset that contains the stream may set it at a different time, as datasets do that
    repeat their data in `__iter__`. And a different loader over the same stream may be in a different epoch.
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


def restore_own_shards() -> None:
    """In a worker, real or simulated, load a stream's state only into the worker's own shards.

    In a worker, `datasets` loads the state into the stream of all shards first, and then into the stream of the
    worker's own shards, to which it belongs. If a stream has a list of states, and the worker's list has a different
    length, the first load fails, as with `shuffle(buffer_size=1)` and `concatenate_datasets`. Only the second load is
    needed.
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
