"""Stream: what a fetcher has opened, of which one batch may have been looked at ahead of its delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable._fetch.closing import close
from resumable._fetch.stalls import leave
from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable._order.cursor import Cursor
    from resumable._stats import Meter

__all__ = ["Stream"]


class Stream:
    """Batches of one epoch, each with the cursor after it.

    Args:
        batches: a fetcher's generator.
        meter: is told what is delivered; None where there are no worker processes.
    """

    def __init__(self, batches: Iterator[tuple[Any, Cursor]], meter: Meter | None = None) -> None:
        self._batches, self._meter = batches, meter
        self._ahead: tuple[Any, Cursor] | None = None

    @property
    def is_ahead(self) -> bool:
        """Whether a batch was looked at that is not delivered yet, so that the source stands after it."""
        return self._ahead is not None

    def refuse_inside(self) -> None:
        """Refuse what cannot be done while a batch is being read.

        Raises:
            UnsupportedError: one is.
        """
        if self._batches.gi_running:  # type: ignore[attr-defined]  # fetchers are generators
            raise UnsupportedError(
                "the loader was closed by what reads a batch of it, or by a signal's handler meanwhile.\n"
                "A stream cannot end inside of its own next(). Raise an exception there, as sys.exit() does: that ends "
                "the stream, too."
            )

    def take(self) -> tuple[Any, Cursor]:
        """Return the next batch to deliver.

        Raises:
            StopIteration: the epoch is over.
        """
        if self._ahead is None:
            taken = next(self._batches)
        else:
            taken, self._ahead = self._ahead, None
        if self._meter is not None:
            self._meter.deliver()
        return taken

    def peek(self) -> Any:
        """Return the batch that `take` will return.

        Raises:
            StopIteration: the epoch is over.
        """
        if self._ahead is None:
            self._ahead = next(self._batches)
        return self._ahead[0]

    def put_back(self, batch: Any, cursor: Cursor) -> None:
        """Put a batch back that was taken, and did not reach its loop: `take` returns it again."""
        self._ahead = batch, cursor

    def close(self) -> None:
        """Close the source, which may wait for its threads and workers."""
        leave(self)
        close(self._batches)  # type: ignore[arg-type]  # fetchers are generators
