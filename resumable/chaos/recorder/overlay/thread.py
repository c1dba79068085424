"""What this thread is about, which the audit hook asks for."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["THREAD", "trusted"]


class _Thread(threading.local):
    trusted = 0  # calls under way that were judged already
    temporary = 0  # calls of `tempfile` under way
    saving = 0  # calls of `torch.save` and its kin under way


THREAD = _Thread()


@contextmanager
def trusted() -> Iterator[None]:
    """Let the audit hook pass what this thread does: where it leads to was looked at already."""
    THREAD.trusted += 1
    try:
        yield
    finally:
        THREAD.trusted -= 1
