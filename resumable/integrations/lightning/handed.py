"""Which loaders have given a batch to each of the Trainer's batches, and which of those are trained on."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Handed"]


class Handed:
    """The Trainer's batches from being fetched to being trained on, in their order.

    One batch of the Trainer is a batch of each loader; a loader that is exhausted (`max_size`) gives none. A loader
    that gives a second one has begun the Trainer's next batch.
    """

    def __init__(self) -> None:
        self._fetched: deque[set[int]] = deque()

    def __len__(self) -> int:
        """Count the Trainer's batches that were fetched and not taken."""
        return len(self._fetched)

    def add(self, loader: int) -> None:
        """Note that a loader has delivered a batch."""
        if not self._fetched or loader in self._fetched[-1]:
            self._fetched.append(set())
        self._fetched[-1].add(loader)

    def take(self) -> Iterable[int]:
        """Take the oldest of the Trainer's batches away: the loaders that gave to it."""
        return self._fetched.popleft() if self._fetched else ()

    def forget(self, loader: int) -> None:
        """Forget what a loader gave, as it will give it again."""
        for batch in self._fetched:
            batch.discard(loader)
        self._fetched = deque(filter(None, self._fetched))

    def clear(self) -> None:
        """Forget all that was fetched."""
        self._fetched.clear()
