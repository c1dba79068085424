"""A forked process must not free the DALI objects that it inherits.

A fork does not copy the threads of a pipeline, so freeing the copy of a pipeline crashes the process. Python may free
garbage in reference cycles at any time. So the child, which may be a worker of any library, must not collect it.
"""

from __future__ import annotations

import gc
import os

__all__ = ["leave_garbage"]

_collecting = False
_under_way = 0


def leave_garbage() -> None:
    """From now on, keep forks of this process from collecting garbage that existed before the fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_hold, after_in_parent=_go_on, after_in_child=_begin)


def _hold() -> None:
    # Disabled before the fork, as the child runs other hooks before ours.
    global _collecting, _under_way  # noqa: PLW0603  # one per process, like the collector
    if not _under_way:  # threads may fork at the same time
        _collecting = gc.isenabled()
    _under_way += 1
    gc.disable()


def _go_on() -> None:
    global _under_way  # noqa: PLW0603  # as above
    _under_way -= 1
    if _collecting and not _under_way:
        gc.enable()


def _begin() -> None:
    global _under_way  # noqa: PLW0603  # as above
    _under_way = 0
    gc.freeze()
    if _collecting:
        gc.enable()
