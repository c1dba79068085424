"""Distinguishes an iteration that its user ends from one that the garbage collector ends.

The garbage collector comes at any moment and in any thread, also in one that is just starting and holds locks of the
`threading` module. Whoever waits for a thread there may wait forever.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["close", "may_wait"]

_closing = threading.local()


def close(generator: Generator[Any, None, None]) -> None:
    """Close a generator, which may wait for its threads meanwhile."""
    before = may_wait()
    _closing.by_hand = True
    try:
        generator.close()
    finally:
        _closing.by_hand = before


def may_wait() -> bool:
    """Tell a generator that is being closed whether it may wait for its threads: whether `close` is at work."""
    return getattr(_closing, "by_hand", False)
