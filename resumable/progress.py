"""Progress: how far the batches of a loader are. For iterators, and for integrations that drive a loader themselves.

delivered       returned by `next()`
in flight       delivered, and not acknowledged yet; only with `ack="manual"`
acknowledged    known to be in the weights: what a state tells
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Literal

from resumable._state import Mark, State
from resumable.closing import close
from resumable.cursor import Cursor
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable.feeds import Feed
    from resumable.options import Options

__all__ = ["Progress"]


class Progress:
    """The place of a loader, which all of its iterators share, and the stream that is open there.

    Args:
        feed: gets the batches from a backend.
        options: the options of `wrap`.

    Attributes:
        moves: how often the place was set from outside, by loading, seeking, or leaving an epoch. An iterator for which
            it has changed goes on at the new place.
    """

    def __init__(self, feed: Feed, options: Options) -> None:
        self._feed, self._options = feed, options
        self._batch_size = options.batch_size or 1
        self._global_batch: int | None = None  # fixed when the stream is first opened, or by a loaded state
        self._delivered = self._acknowledged = Mark(Cursor())
        self._in_flight: deque[Mark] = deque()
        self._stream: Iterator[tuple[Any, Cursor]] | None = None
        self._opened_at: Mark | None = None
        self._ended: tuple[Mark, Mark] | None = None  # an epoch's last batch, not acknowledged at its end; after it
        self._untouched = True  # nothing was opened or loaded yet
        self._auto = options.ack == "auto"
        self.moves = 0

    @property
    def delivered(self) -> Cursor:
        """The place after the last batch that was delivered."""
        return self._delivered.cursor

    @property
    def acknowledged(self) -> Cursor:
        """The place after the last batch that is in the weights."""
        return self._acknowledged.cursor

    @property
    def in_flight(self) -> int:
        """Number of batches that were delivered, and not acknowledged."""
        return len(self._in_flight)

    @property
    def global_batch(self) -> int:
        """Samples per step over all ranks."""
        return self._global_batch or self._batch_size * self._feed.world().size

    @property
    def following(self) -> Cursor:
        """The place of the next batch to be delivered: in the next epoch where this one has none left."""
        cursor, source = self._delivered.cursor, self._delivered.source
        ended = source is not None and source.ended and cursor.position > 0
        over = ended or self._feed.finished(cursor, self.global_batch)
        return self._feed.following(cursor, self.global_batch) if over else cursor

    # ------------------------------------------------------------------ batches

    def begin(self) -> int:
        """Go back to after the last acknowledged batch, and return the number of the epoch."""
        if self._in_flight:
            self._rewind()
        return self._acknowledged.cursor.epoch

    def next_batch(self, epoch: int) -> Any:
        """Deliver the next batch of an epoch.

        Raises:
            StopIteration: the epoch is over.
        """
        if self._stream is None:
            self._open()
        assert self._stream is not None
        try:
            batch, cursor = next(self._stream)
            self._deliver(cursor)
        except StopIteration:
            self._close()
            self._finish(epoch)
            raise
        except BaseException:
            if self._auto and self._acknowledged is not self._opened_at:
                self._stand_at(self._acknowledged._replace(source=self._feed.source_state()))
            self._close()
            raise
        return batch

    def acknowledge(self, batches: int) -> None:
        """Count the oldest batches in flight as trained on.

        Raises:
            ConfigurationError: the loader acknowledges by itself, or fewer batches are in flight.
        """
        if self._auto:
            raise ConfigurationError(
                'ack() was called, but the loader was wrapped with ack="auto".\n'
                'Each batch counts as trained on once it is delivered. Wrap with ack="manual" to decide it yourself.'
            )
        if not 0 <= batches <= len(self._in_flight):
            raise ConfigurationError(
                f"ack({batches}) was called, but {len(self._in_flight)} batches are waiting to be acknowledged.\n"
                "The state would run ahead of the weights. Acknowledge each batch once, after its optimizer step."
            )
        for _ in range(batches):
            self._acknowledged = self._in_flight.popleft()

    @property
    def ack_mode(self) -> Literal["auto", "manual"]:
        """Who acknowledges: the loader itself, or `acknowledge`."""
        return "auto" if self._auto else "manual"

    def set_ack(self, ack: Literal["auto", "manual"]) -> None:
        """Change who acknowledges, from the place at which the loader stands now."""
        if self._auto != (ack == "auto"):
            self._in_flight.clear()
            mark = self._mark_now()
            self._close()
            self._stand_at(mark)
            self._auto = ack == "auto"

    # ------------------------------------------------------------------ epochs

    def end_epoch(self) -> None:
        """Count the epoch as done, whatever is left of it.

        Raises:
            ConfigurationError: batches are in flight.
        """
        if self._in_flight:
            raise ConfigurationError(
                f"epoch {self.acknowledged.epoch} was left with {len(self._in_flight)} batches that were delivered and "
                "not acknowledged.\nThe next epoch would count them as trained on. Call ack() after each optimizer "
                "step, or seek() to where the weights are."
            )
        if self._ended is not None and self._ended[0] is self._acknowledged:  # the source has come to its end since
            self._move(self._ended[1])
            return
        mark = self._mark_now()
        source = self._feed.leave(mark, self.global_batch)
        self._move(mark.at(self._feed.following(mark.cursor, self.global_batch), source))

    def turn_over(self, epoch: int) -> None:
        """Go on after the end of an epoch, some of whose batches are in flight."""
        if self._delivered.cursor.epoch == epoch:
            self._close()
            self._delivered = self._after_epoch()

    # ------------------------------------------------------------------ the place, as a state

    def bookmark(self) -> Callable[[], dict[str, Any]]:
        """Return a function that makes the state of the place at which the loader stands now."""
        mark = self._mark_now()
        return lambda: self._state_of(mark)

    def load(self, state: State, global_batch: int) -> None:
        """Go to the place of a state, with this many samples per step from now on."""
        self._global_batch = global_batch
        self._move(state.mark)

    def go_to(self, cursor: Cursor) -> None:
        """Go to any place of a source that needs no state of its own for that."""
        self._move(self._acknowledged.at(cursor, None))

    # ------------------------------------------------------------------ inside

    def _mark_now(self) -> Mark:
        mark = self._acknowledged
        if self._untouched or (self._auto and self._stream is not None and mark is not self._opened_at):
            mark = mark._replace(source=self._feed.source_state())
        return mark

    def _state_of(self, mark: Mark) -> dict[str, Any]:
        state = State(mark, self.global_batch, self._batch_size, self._feed.facts(), self._feed.unit)
        return state.as_dict(self._options.find_world().size, self._feed.can)

    def _open(self) -> None:
        if self._global_batch is None:
            self._global_batch = self.global_batch
        if self._untouched:
            self._untouched = False
            self._stand_at(self._acknowledged._replace(source=self._feed.source_state()))
        self._opened_at = self._delivered
        self._stream = self._feed.open(self._delivered, self._global_batch)

    def _close(self) -> None:
        if self._stream is not None:
            close(self._stream)  # type: ignore[arg-type]  # feeds are generators
            self._stream = None

    def _stand_at(self, mark: Mark) -> None:
        self._delivered = self._acknowledged = mark

    def _move(self, mark: Mark) -> None:
        self.moves += 1
        self._untouched = False
        self._rewind()
        self._stand_at(mark)

    def _rewind(self) -> None:
        self._close()
        self._ended = None
        self._in_flight.clear()
        self._delivered = self._acknowledged

    def _deliver(self, cursor: Cursor) -> None:
        if self._auto:
            self._stand_at(self._delivered.delivered(cursor))
        else:
            self._delivered = self._delivered.delivered(cursor, self._feed.source_state(asked=False))
            self._in_flight.append(self._delivered)

    def _finish(self, epoch: int) -> None:
        """Count the epoch as done, unless a batch of it is in flight."""
        if self._delivered.cursor.epoch != epoch:
            return
        if self._in_flight:
            self._ended = self._delivered, self._after_epoch()
        else:
            self._stand_at(self._after_epoch())

    def _after_epoch(self) -> Mark:
        following = self._feed.following(self._delivered.cursor, self.global_batch)
        return self._delivered.at(following, self._feed.source_state())
