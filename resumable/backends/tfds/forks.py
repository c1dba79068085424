"""Rejects processes that were forked after the first use of array_record or TensorFlow, as reading crashes or hangs.

The first reader of array_record starts a pool of 64 threads for the whole process. A fork copies the pool without its
threads, and a read in the child waits for them, or ends with a segmentation fault. A writer starts a single thread with
the same effect, which cannot be distinguished from other threads. TensorFlow also has such pools, from its first
operation on.
"""

from __future__ import annotations

import os
import sys
import threading

from resumable.errors import UnsupportedError

__all__ = ["check_tensorflow", "check_threads"]

_POOL = 64
_TASKS = "/proc/self/task"

_begun_in: int | None = None
_forked_with_pool: int | None = None
_forked_with_tensorflow: int | None = None


def check_threads(*, inherited: bool = False) -> None:
    """Remember the first read of this process.

    Args:
        inherited: whether the caller knows of a reader that was opened before this process was forked.

    Raises:
        UnsupportedError: this process was forked from a process that had used array_record.
    """
    global _begun_in  # noqa: PLW0603  # one per process, like the pool
    if inherited or not {_begun_in, _forked_with_pool} <= {None, os.getpid()}:
        raise UnsupportedError(
            "this process was forked after array_record files were used, and cannot read them.\n"
            "array_record has threads that a fork does not copy, so a read crashes or hangs. Do not read or write "
            "before the workers start (shapes and types are in builder.info.features). Or create the DataLoader with "
            'multiprocessing_context="forkserver" or "spawn", or prepare the data as TFRecord files.'
        )
    _begun_in = os.getpid()


def check_tensorflow() -> None:
    """Raise an error if TensorFlow's threads did not survive a fork.

    Raises:
        UnsupportedError: this process was forked from a process that had used TensorFlow.
    """
    if _forked_with_tensorflow not in {None, os.getpid()}:
        raise UnsupportedError(
            'this process was forked after TensorFlow was used, and cannot decode with it (reader="tf").\n'
            "TensorFlow has threads that a fork does not copy, so it would wait for them forever. Do not read or use "
            "TensorFlow before the workers start. Or create the DataLoader with "
            'multiprocessing_context="forkserver" or "spawn", or use reader="index", which does not need TensorFlow.'
        )


def _look() -> None:
    """Before a fork, find threads that it would not copy; user code may have started them."""
    _look_for_pool()
    _look_for_tensorflow()


def _look_for_tensorflow() -> None:
    global _forked_with_tensorflow  # noqa: PLW0603  # as above
    module = sys.modules.get("tensorflow.python.eager.context")
    context = module and module.context_safe()
    # The only way to ask, and not public. If this name is missing, TensorFlow counts as used.
    if context and getattr(context, "_context_handle", True) is not None and _forked_with_tensorflow is None:
        _forked_with_tensorflow = os.getpid()


def _look_for_pool() -> None:
    """Find the pool that has this number of threads."""
    global _forked_with_pool  # noqa: PLW0603  # as above
    if "array_record.python.array_record_module" not in sys.modules or not os.path.isdir(_TASKS):  # noqa: PTH112  # quick
        return
    if len(os.listdir(_TASKS)) - threading.active_count() >= _POOL:  # noqa: PTH208  # as above
        _forked_with_pool = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_look)
