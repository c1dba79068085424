"""Processes forked after the first use of array_record or TensorFlow, in which reading crashes or hangs: refused.

The package's first reader starts a pool of 64 threads for the whole process. A fork copies the pool without its
threads, and a read in the child waits for them, or ends with a segmentation fault. A writer starts a single thread, to
the same effect, which cannot be told from other threads. TensorFlow keeps such pools, too, from its first operation on.
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
        inherited: the caller knows of a reader that was opened before this process was forked.

    Raises:
        UnsupportedError: this process was forked from one that had used array_record before.
    """
    global _begun_in  # noqa: PLW0603  # the pool, too, is one for the whole process
    if inherited or not {_begun_in, _forked_with_pool} <= {None, os.getpid()}:
        raise UnsupportedError(
            "this process was forked after a use of array_record files, and cannot read them.\n"
            "array_record keeps threads that a fork leaves behind, so that a read crashes or hangs. Read and write "
            "nothing before the workers start (shapes and types are in builder.info.features), or make the DataLoader "
            'with multiprocessing_context="forkserver" or "spawn", or prepare the data as TFRecord files.'
        )
    _begun_in = os.getpid()


def check_tensorflow() -> None:
    """Refuse TensorFlow where its threads were left behind by a fork.

    Raises:
        UnsupportedError: this process was forked from one that had used TensorFlow before.
    """
    if _forked_with_tensorflow not in {None, os.getpid()}:
        raise UnsupportedError(
            'this process was forked after a use of TensorFlow, and cannot decode with it (reader="tf").\n'
            "TensorFlow keeps threads that a fork leaves behind, so that it would wait for them for ever. Read nothing "
            "and use no TensorFlow before the workers start, or make the DataLoader with "
            'multiprocessing_context="forkserver" or "spawn", or use reader="index", which does without TensorFlow.'
        )


def _look() -> None:
    """Look before a fork for threads that it would leave behind, which others may have started."""
    _look_for_pool()
    _look_for_tensorflow()


def _look_for_tensorflow() -> None:
    global _forked_with_tensorflow  # noqa: PLW0603  # as above
    module = sys.modules.get("tensorflow.python.eager.context")
    context = module and module.context_safe()
    # There is no public way to ask; without this name it is taken to be in use.
    if context and getattr(context, "_context_handle", True) is not None and _forked_with_tensorflow is None:
        _forked_with_tensorflow = os.getpid()


def _look_for_pool() -> None:
    """Find the pool by its number of threads."""
    global _forked_with_pool  # noqa: PLW0603  # as above
    if "array_record.python.array_record_module" not in sys.modules or not os.path.isdir(_TASKS):  # noqa: PTH112  # quick
        return
    if len(os.listdir(_TASKS)) - threading.active_count() >= _POOL:  # noqa: PTH208  # as above
        _forked_with_pool = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_look)
