"""For loaders that reach a position by reading up to it."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.contenders import Contender

__all__ = ["read_to"]


def read_to(contender: Contender, step: int) -> Any:
    """Read `step` batches and return the state after them."""
    batches = contender.start()
    deque(islice(batches, step), maxlen=0)
    return contender.state()
