"""What a forked process inherits of DALI is left to its parent.

A pipeline has threads, which a fork leaves behind; where the copy is freed, the process crashes. So garbage in cycles,
which is freed whenever Python likes, must not be collected by the child: not by a worker of any library.
"""

from __future__ import annotations

import gc
import os

__all__ = ["leave_garbage"]

_collecting = False
_under_way = 0


def leave_garbage() -> None:
    """From now on, no fork of this process collects garbage that was there before it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_hold, after_in_parent=_go_on, after_in_child=_begin)


def _hold() -> None:
    # Off before the fork, as the child runs other hooks before ours.
    global _collecting, _under_way  # noqa: PLW0603  # of the process, as the collector is
    if not _under_way:  # threads may fork side by side
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
