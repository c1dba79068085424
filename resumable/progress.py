"""Progress: how far the batches of a loader are. For iterators, and for integrations that drive a loader themselves.

delivered       returned by `next()`
in flight       delivered, and not acknowledged yet; only with `ack="manual"`
acknowledged    known to be in the weights: what a state tells
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Literal

from resumable._data import Noted
from resumable._ends import Ends
from resumable._fetch import Changes, Owner, Stream, note_place, stalls
from resumable._opening import Opening
from resumable._order.cursor import Cursor
from resumable._state import Mark, State
from resumable._stats import Stopwatch
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from resumable._fetch import Fetcher
    from resumable._fetch.stalls import Awaited
    from resumable._options import Options
    from resumable._state import Journal

__all__ = ["Progress"]

_copies: list[Stream] = []  # that a fork has made of open streams, kept so that nothing in them ends


class Progress(Ends):
    """The place of a loader, which all of its iterators share, and the stream that is open there.

    Args:
        fetcher: gets the batches from a backend.
        options: the options of `wrap`.

    Attributes:
        moves: how often the place was set from outside, by loading, seeking, or leaving an epoch. An iterator for which
            it has changed goes on at the new place.
        noted: what the data were like, to be compared with what a state says.
    """

    def __init__(self, fetcher: Fetcher, options: Options) -> None:
        self._fetcher, self._options = fetcher, options
        self._batch_size = options.batch_size or 1
        self._global_batch: int | None = None  # fixed when the stream is first opened, or by a loaded state
        self._delivered = self._acknowledged = Mark(Cursor())
        self._in_flight: deque[Mark] = deque()
        self._owner, self._opening = Owner(), Opening(fetcher, options)
        self._changes = Changes(fetcher.can)
        stored = fetcher.can.stored if options.canary and not options.evaluation else None
        self.noted = Noted(stored, getattr(fetcher.backend, "length", 0))
        self._stream: Stream | None = None
        self._opened_at: Mark | None = None
        self._turned: Mark | None = None  # the next epoch's beginning, where peek() has opened that already
        self._home: Mark | None = None  # where each pass of an evaluation begins
        self._in_force: Mapping[str, Any] | None = None  # settings with which the open stream was begun
        self._ended: tuple[Mark, Mark] | None = None  # an epoch's last batch, not acknowledged at its end; after it
        self._untouched = True  # nothing was opened or loaded yet
        self._auto = options.ack == "auto"
        self.moves = 0
        self.stopwatch = Stopwatch(fetcher.can)

    @property
    def delivered(self) -> Cursor:
        """The place after the last batch that was delivered."""
        return self._delivered.cursor

    @property
    def acknowledged(self) -> Cursor:
        """The place after the last batch that is in the weights."""
        return self._counts.cursor

    @property
    def in_flight(self) -> int:
        """Number of batches that were delivered, and not acknowledged."""
        return len(self._in_flight)

    @property
    def counted(self) -> tuple[int, int]:
        """How many global batches and samples are in the weights, over all epochs."""
        counts = self._counts
        return counts.global_step, counts.samples_seen

    @property
    def global_batch(self) -> int:
        """Samples per step over all ranks."""
        return self._global_batch or self._batch_size * self._fetcher.world().size

    @property
    def first_global_batch(self) -> int:
        """Samples per step with which the run began."""
        return self._changes.first_global_batch(self.global_batch)

    @property
    def following(self) -> Cursor:
        """The place of the next batch to be delivered: in the next epoch where this one has none left."""
        mark = self._counts if self._auto else self._delivered
        cursor, source = mark.cursor, mark.source
        ended = source is not None and source.ended and cursor.position > 0
        over = ended or self._fetcher.finished(cursor, self.global_batch)
        return self._fetcher.following(cursor, self.global_batch) if over else cursor

    # ------------------------------------------------------------------ batches

    def begin(self) -> int:
        """Go back to after the last acknowledged batch, and return the number of the epoch."""
        self._opening.check_ranks()
        self.stopwatch.begin_loop()
        self._go_back(new_loop=True)
        if self._in_flight:
            self._rewind()
        return self._acknowledged.cursor.epoch

    def next_batch(self, epoch: int) -> Any:
        """Deliver the next batch of an epoch.

        Raises:
            StopIteration: the epoch is over.
            UnsupportedError: another thread is at it, or the stream was opened in another process.
        """
        self._owner.enter()
        if self._doubt is not None:
            self._go_back()
            self._doubt = None  # the next one is asked for
        before, watch = self._delivered.cursor, self.stopwatch
        watch.start()
        try:
            self._opening.step()
            batch = self._next(epoch)
            watch.delivered(before, self._delivered.cursor, batch)
        except StopIteration:
            raise
        except Exception as error:
            note_place(error, before, self._options.find_world().rank)
            self._opening.failed(error, before)
            raise
        else:
            return batch
        finally:
            watch.stop(before)
            self._owner.leave()

    def _next(self, epoch: int) -> Any:
        if self._turned is not None and self._delivered.cursor.epoch == epoch:
            self._finish(epoch)
            raise StopIteration
        if self._stream is None:
            self._open()
        assert self._stream is not None
        try:
            batch, cursor = self._stream.take()
            self._deliver(cursor)
        except StopIteration:
            self._close()
            self._finish(epoch)
            raise
        except BaseException:
            if self._auto and self._doubt is None and self._acknowledged is not self._opened_at:
                self._stand_at(self._here(self._acknowledged))
            self._close()
            raise
        return batch

    def begin_again(self) -> None:
        """Go to where the first call of this was: to the beginning of each pass of an evaluation."""
        if self._home is not None:
            self._move(self._home)
            return
        self._touch()
        mark = self._acknowledged
        self._home = mark._replace(source=self._fetcher.begins_with(mark.source))

    def close(self) -> None:
        """End the stream, and what of the source lives on between epochs; the place stays.

        Raises:
            UnsupportedError: a batch is being read.
        """
        if self._owner.is_copy:
            return  # the stream is that of another process
        with self._owner.closing():
            if self._stream is not None:
                self._stream.refuse_inside()
                self._keep_before()
                if self._auto:
                    self._stand_at(self._mark_now())
            self._close()
            if self._fetcher.can.close is not None:
                self._fetcher.can.close()

    def let_go(self) -> None:
        """Drop the open stream without waiting for it, as the garbage collector would."""
        self._stream = None

    def acknowledge(self, batches: int) -> None:
        """Count the oldest batches in flight as trained on.

        Raises:
            ConfigurationError: the loader acknowledges by itself, or fewer batches are in flight.
        """
        if self._auto:
            raise ConfigurationError(
                'ack() was called, but the loader was wrapped with ack="auto".\n'
                'Each batch counts once the next one is asked for. Wrap with ack="manual" to decide it yourself.'
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
            self._go_back(new_loop=True)
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
        self._go_back(new_loop=True)
        if self._ended is not None and self._ended[0] is self._acknowledged:  # the source has come to its end since
            self._move(self._ended[1])
            return
        mark = self._mark_now()
        if self._stream is not None and self._stream.is_ahead:
            self._close()  # the source stands after the mark
        source = self._fetcher.leave(mark, self.global_batch)
        self._move(mark.at(self._fetcher.following(mark.cursor, self.global_batch), source))

    def turn_over(self, epoch: int) -> None:
        """Go on after the end of an epoch, some of whose batches are in flight."""
        if self._delivered.cursor.epoch == epoch:
            self._close()
            self._delivered = self._after_epoch()

    # ------------------------------------------------------------------ the place, as a state

    def bookmark(self) -> Callable[[], dict[str, Any]]:
        """Return a function that makes the state of the place at which the loader stands now."""
        self._opening.check_ranks()
        mark = self._mark_without() or self._mark_now()
        acknowledged, global_batch = self._acknowledged, self.global_batch
        journal = self._changes.journal_at(mark, stays=lambda: self._acknowledged is acknowledged)

        def make() -> dict[str, Any]:
            here = self._acknowledged is acknowledged
            source = self._fetcher.source_now(mark.source) if here else mark.source
            now = mark if source is mark.source else mark._replace(source=source)
            return self._state_of(now, global_batch, journal())

        return make

    def load(self, state: State, mark: Mark, global_batch: int) -> None:
        """Go to the place of a state in this run, with so many samples per step from now on, and with its settings."""
        self._global_batch = global_batch
        self._move(mark)
        self._opening.loaded()
        self._changes.load(state, global_batch)

    def go_to(self, cursor: Cursor) -> None:
        """Go to any place of a source that needs no state of its own for that."""
        self._go_back(new_loop=True)
        self._move(self._acknowledged.at(cursor, None))
        self._opening.moved("after seek()")

    def read_from(self, fetcher: Fetcher, options: Options) -> None:
        """Go on with another fetcher of the same source: that of a state's seed and name."""
        self._close()
        if self._fetcher.can.close is not None:
            self._fetcher.can.close()
        self._fetcher, self._options, self._opening = fetcher, options, self._opening.of(fetcher, options)
        self._changes = Changes(fetcher.can)

    # ------------------------------------------------------------------ inside

    def _mark_now(self) -> Mark:
        mark = self._acknowledged
        live = self._stream is not None and not self._stream.is_ahead and mark is not self._opened_at
        if self._untouched or (self._auto and live):
            return self._here(mark)
        source = self._fetcher.source_now(mark.source)
        return mark if source is mark.source else mark._replace(source=source)

    def _here(self, mark: Mark) -> Mark:
        """Return a mark with the source's state and canary of this moment."""
        return mark._replace(source=self._fetcher.source_state(), canary=self._fetcher.canary())

    def _touch(self) -> None:
        """Keep the state that the source was given in."""
        if self._untouched:
            self._untouched = False
            self._stand_at(self._here(self._acknowledged))

    def _state_of(self, mark: Mark, global_batch: int, journal: Journal) -> dict[str, Any]:
        fetcher = self._fetcher
        facts, noted = (fetcher.fingerprint(), fetcher.unit, journal), self.noted.as_dict()
        state = State(mark, global_batch, self._batch_size, *facts, data=noted)
        return state.as_dict(self._options.find_world().size)

    def _open(self) -> None:
        if self._global_batch is None:
            self._global_batch = self.global_batch
        self._touch()
        self._stream = self._opened(self._delivered)

    def _opened(self, mark: Mark) -> Stream:
        self.stopwatch.opens(self._fetcher.can)
        self._opened_at = mark
        self.noted.opened()
        self._opening.tell(mark, self.global_batch, self.noted)
        self._owner.opened()
        self._in_force = self._changes.in_force(mark)
        mark = mark._replace(in_force=self._in_force)
        stream = Stream(self._fetcher.open(mark, self.global_batch), self.stopwatch.meter)
        if self._options.stall_after is not None:
            stalls.follow(stream, self.stopwatch, self._options.stall_after, self._awaited)
        return stream

    def _awaited(self) -> Awaited:
        return stalls.awaited(self._fetcher, self._delivered.cursor, self.global_batch, self._owner.reader)

    def _close(self) -> None:
        self._turned = None
        stream, self._stream = self._stream, None  # first, as an interrupt may come while it is closed
        if stream is not None:
            if self._owner.is_elsewhere:
                _copies.append(stream)  # what ends it would wait for workers that are not of this process
            else:
                stream.close()
        self._owner.closed()

    def _stand_at(self, mark: Mark) -> None:
        self._delivered = self._acknowledged = mark

    def _move(self, mark: Mark) -> None:
        self.moves += 1
        self._untouched, self._doubt = False, None
        self._rewind()
        self._stand_at(mark)

    def _rewind(self) -> None:
        self._close()
        self._ended = None
        self._in_flight.clear()
        self._delivered = self._acknowledged

    def _deliver(self, cursor: Cursor) -> None:
        if self._auto:
            before = self._delivered
            self.begin_doubt(before)  # first of all, as an interrupt may come in between
            self._stand_at(before.delivered(cursor, in_force=self._in_force))
        else:
            source = self._fetcher.source_state(asked=False)
            self._delivered = self._delivered.delivered(cursor, source, self._fetcher.canary(), self._in_force)
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
        if self._turned is not None:
            turned, self._turned = self._turned, None
            return turned
        following = self._fetcher.following(self._delivered.cursor, self.global_batch)
        return self._delivered.at(following, self._fetcher.source_state())
