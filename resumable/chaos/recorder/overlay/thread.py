"""The state of this thread, for the audit hook."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["THREAD", "trusted"]


class _Thread(threading.local):
    trusted = 0  # running calls that were already checked
    temporary = 0  # running calls of `tempfile`
    saving = 0  # running calls of `torch.save` and similar functions


THREAD = _Thread()


@contextmanager
def trusted() -> Iterator[None]:
    """Let the audit hook ignore this thread: its paths were already checked."""
    THREAD.trusted += 1
    try:
        yield
    finally:
        THREAD.trusted -= 1
