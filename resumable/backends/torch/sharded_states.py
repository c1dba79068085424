"""Mends how Hugging Face's streams take a state back in a worker.

In a worker, `datasets` gives the state to the stream of all shards, and then to that of the worker's own shards, whose
state it is. Where a stream has a list of states, of which the worker's is another length, the first of the two fails,
as for `shuffle(buffer_size=1)` and `concatenate_datasets`. What it is for is the second alone.

Private names of `datasets` (seen in 5.2): `_iter_pytorch`, `_prepare_ex_iterable_for_iteration`,
`_starting_state_dict`. Where one is missing, nothing is mended.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["mend_restoring"]

_ITERATE, _PREPARE, _STARTING = "_iter_pytorch", "_prepare_ex_iterable_for_iteration", "_starting_state_dict"
_OF_WORKER = "_resumable_of_worker"  # set on a stream from the start of `_iter_pytorch` to its first call of `_PREPARE`


def mend_restoring() -> None:
    """In a worker, or where one is played, let a stream's state go to the worker's own shards alone."""
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
