"""A look at the next batch, which moves nothing: the part of Progress that reads ahead of the place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable._doubts import Doubts
from resumable._fetch import note_place
from resumable.errors import DataError, UnsupportedError

if TYPE_CHECKING:
    from collections import deque

    from resumable._fetch import Stream
    from resumable._options import Options
    from resumable._state import Mark
    from resumable._stats import Stopwatch

__all__ = ["Peeks"]


class Peeks(Doubts):
    """Gives the batch that is delivered next; the open stream is ahead of the place then."""

    stopwatch: Stopwatch
    _auto: bool
    _stream: Stream | None
    _turned: Mark | None
    _in_flight: deque[Mark]
    _options: Options

    if TYPE_CHECKING:  # what Progress has

        def _open(self) -> None: ...
        def _opened(self, mark: Mark) -> Stream: ...
        def _mark_now(self) -> Mark: ...
        def _after_epoch(self) -> Mark: ...

    def peek(self) -> Any:
        """Return the batch that is delivered next, and move nothing; after an epoch's last one, the next epoch's first.

        Raises:
            UnsupportedError: the epoch is over, and some of its batches are not acknowledged; or as in `next_batch`.
            DataError: there is no batch.
        """
        self._owner.enter()
        self._go_back()
        self.stopwatch.start()
        try:
            batch = self._peek()
            self.stopwatch.looked((self._turned or self._delivered).cursor)
        except Exception as error:
            note_place(error, (self._turned or self._delivered).cursor, self._options.find_world().rank)
            raise
        else:
            return batch
        finally:
            self.stopwatch.stop(self._delivered.cursor)
            self._owner.leave()

    def _peek(self) -> Any:
        if self._stream is None or not self._stream.is_ahead:
            if self._auto and self._stream is not None:
                self._keep_before()
                self._stand_at(self._mark_now())  # the source is about to be ahead of it
            try:
                return self._look()
            except StopIteration:
                return self._look_past_end()
            except BaseException:
                self._close()
                raise
        return self._stream.peek()

    def _look(self) -> Any:
        if self._stream is None:
            self._open()
        assert self._stream is not None
        return self._stream.peek()

    def _look_past_end(self) -> Any:
        """Open the next epoch, and stay where the loader stands."""
        if self._in_flight:
            raise UnsupportedError(
                f"peek() was called after the last batch of epoch {self._delivered.cursor.epoch}, of which "
                f"{len(self._in_flight)} batches are not acknowledged.\nA new loop would be given those again, so "
                "which one is next cannot be said. Call ack() first."
            )
        self._close()
        turned = self._after_epoch()
        stream = self._opened(turned)
        try:
            batch = stream.peek()
        except StopIteration:
            raise DataError(
                "peek() was called, but there is no batch to look at: the source gave none.\n"
                "A loop over it would be empty. Look whether the data is where it should be."
            ) from None
        self._stream, self._turned = stream, turned
        return batch
