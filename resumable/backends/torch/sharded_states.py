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
from typing import Any

__all__ = ["mend_restoring"]

_PREPARE, _STARTING = "_prepare_ex_iterable_for_iteration", "_starting_state_dict"


def mend_restoring() -> None:
    """In a worker, or where one is played, let a stream's state go to the worker's own shards alone."""
    stream = getattr(sys.modules.get("datasets"), "IterableDataset", None)
    prepare = getattr(stream, _PREPARE, None)
    if stream is None or prepare is None or hasattr(prepare, "__wrapped__"):
        return

    @functools.wraps(prepare)
    def prepared(self: Any, *args: Any, **options: Any) -> Any:
        state = getattr(self, _STARTING, None)
        if state is None or sys._getframe(1).f_code.co_name != "_iter_pytorch":  # noqa: SLF001  # who gives it again
            return prepare(self, *args, **options)
        setattr(self, _STARTING, None)
        try:
            return prepare(self, *args, **options)
        finally:
            setattr(self, _STARTING, state)

    setattr(stream, _PREPARE, prepared)
