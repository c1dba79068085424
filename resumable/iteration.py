"""Iterators over a Loader: thin, as the loader alone knows the place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable.faults import point

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable.loader import Loader

__all__ = ["BatchIterator", "Epoch", "deliver"]


def deliver(loader: Loader, epoch: int) -> Any:
    """Deliver the next batch of an epoch; for iterators, and for integrations that drive a loader themselves.

    Raises:
        StopIteration: the epoch is over.
    """
    point("loader.fetch", loader)
    try:
        batch = loader.progress.next_batch(epoch)
    except StopIteration:
        if loader.progress.acknowledged.epoch > epoch:
            point("loader.epoch_end", loader)
        raise
    point("loader.handed", loader, batch)
    return batch


class BatchIterator:
    """Batches up to the end of the epoch in which the loader stands at the first `next()`.

    All iterators of a loader share its place: each batch is delivered once. Where the place is set by
    `load_state_dict` or `seek` in the middle of a loop, the loop goes on from there.

    Args:
        loader: delivers the batches.
        epoch: stop unless the loader stands in this epoch; None for the epoch at the first `next()`, or the next one
            where that has no batch left.
    """

    def __init__(self, loader: Loader, epoch: int | None = None) -> None:
        self._loader = loader
        self._only = epoch
        self._epoch = -1
        self._moves = -1
        self._start = 0  # position in the epoch at which it was begun
        self._over = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        if self._moves != self._loader.progress.moves:
            self._begin()
        if self._loader.cursor.epoch != self._epoch:
            self._over = True
            raise StopIteration
        position = self._loader.cursor.position
        try:
            return deliver(self._loader, self._epoch)
        except StopIteration:
            return self._after_end(nothing_left=position == self._start > 0)

    def _begin(self) -> None:
        self._epoch = self._loader.progress.begin()
        self._moves = self._loader.progress.moves
        self._start = self._loader.cursor.position
        if self._only is not None and self._epoch != self._only:
            self._epoch = -1

    def _after_end(self, *, nothing_left: bool) -> Any:
        """End, or go on with the next epoch where the last batch had been delivered before this iterator began."""
        if self._only is None and nothing_left and self._loader.cursor.epoch != self._epoch:
            self._moves = -1
            return next(self)
        self._over = True
        raise StopIteration


class Epoch:
    """One epoch of `Loader.epochs`: iterate over it for its batches.

    Args:
        loader: delivers the batches.
        number: of the epoch, from 0.
    """

    def __init__(self, loader: Loader, number: int) -> None:
        self._loader = loader
        self.number = number

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the batches of this epoch that are left."""
        return BatchIterator(self._loader, self.number)

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        """Count the batches of the whole epoch, of which some may be done."""
        return self._loader.total_steps(self.number)

    def __repr__(self) -> str:
        return f"Epoch({self.number})"
