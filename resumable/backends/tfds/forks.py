"""Processes forked behind the first use of array_record, in which reading crashes or hangs: seen, and refused.

The package's first reader starts a pool of 64 threads for the whole process. A fork copies the pool without its
threads, and a read in the child waits for them, or ends with a segmentation fault. A writer starts a single thread, to
the same effect, which cannot be told from other threads.
"""

from __future__ import annotations

import os
import sys
import threading

from resumable.errors import UnsupportedError

__all__ = ["check_threads"]

_POOL = 64
_TASKS = "/proc/self/task"

_begun_in: int | None = None
_forked_with_pool: int | None = None


def check_threads(*, inherited: bool = False) -> None:
    """Remember the first read of this process.

    Args:
        inherited: the caller knows of a reader that was opened before this process was forked.

    Raises:
        UnsupportedError: this process was forked from one that had used array_record before.
    """
    global _begun_in  # noqa: PLW0603  # the pool, too, is one for the whole process
    if inherited or not {_begun_in, _forked_with_pool} <= {None, os.getpid()}:
        raise UnsupportedError(
            "this process was forked behind a use of array_record files, and cannot read them.\n"
            "array_record keeps threads that a fork leaves behind, so that a read crashes or hangs. Read and write "
            "nothing before the workers start (shapes and types are in builder.info.features), or make the DataLoader "
            'with multiprocessing_context="forkserver" or "spawn", or prepare the data as TFRecord files.'
        )
    _begun_in = os.getpid()


def _look() -> None:
    """Look before a fork whether the pool is there, as others may have started it: by its number of threads."""
    global _forked_with_pool  # noqa: PLW0603  # as above
    if "array_record.python.array_record_module" not in sys.modules or not os.path.isdir(_TASKS):  # noqa: PTH112  # quick
        return
    if len(os.listdir(_TASKS)) - threading.active_count() >= _POOL:  # noqa: PTH208  # as above
        _forked_with_pool = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_look)
