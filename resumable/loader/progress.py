"""Progress: how far a loader is. For iterators, and for integrations that drive a loader themselves.

delivered       returned by `next()`
in flight       delivered, and not acknowledged yet; only with `ack="manual"`
acknowledged    known to be in the weights: counted in a state

With `ack="auto"` a batch is acknowledged when it is delivered. One rule is added: a state that is taken while an
exception is being handled does not count the last batch if the exception was raised after its delivery.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from resumable._data import DataFingerprint
from resumable._fetch import Changes, Owner, Stream, note_place, stalls
from resumable._fetch.fetcher import close_backend
from resumable._introspection import offers
from resumable._order.cursor import Cursor
from resumable._state import Mark, State
from resumable._stats import Stopwatch
from resumable._warn import warn
from resumable.errors import ConfigurationError, DataError, LoopWarning, UnsupportedError
from resumable.loader.startup_checks import Opening
from resumable.protocols import SupportsStored

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from resumable._fetch import Fetcher
    from resumable._fetch.stalls import Awaited
    from resumable._options import Options
    from resumable._order.plan import History, Plan
    from resumable._order.world import World
    from resumable._state import Journal, SourceState


__all__ = ["Progress"]


_copies: list[Stream] = []  # open streams in a fork, kept because closing them would wait for workers
_IN_EXCEPT = (
    "a state was taken while {} is handled, so it does not count the last batch: step {} of epoch {}.\n"
    "If that batch is in the weights already, a resumed run trains on it twice. Only your loop can tell: wrap with "
    'ack="manual", and call loader.ack() after each optimizer step.'
)


@dataclass(slots=True)
class _Last:
    """The batch that was delivered last.

    Args:
        before: the mark before it.
        handled: the exception that was being handled at its delivery.
        is_whole: `before` includes the source's state.
        is_settled: the next batch was asked for, so the loop is done with this one.
    """

    before: Mark
    handled: BaseException | None
    is_whole: bool
    is_settled: bool = False


@dataclass(frozen=True, slots=True)
class _Lost:
    """Batches that do not count, but that their source cannot deliver again.

    Args:
        source: the position of the source.
        position: the position of the loader.
    """

    source: Cursor
    position: Cursor

    def error(self) -> UnsupportedError:
        return UnsupportedError(
            f"the loader is at {self.source}, and its source cannot go back to {self.position}: it has no state, and "
            "continues where it is.\nThe batches in between would be lost silently. Pass the function that makes "
            "the source, wrap(make) instead of wrap(make()), or keep the batches yourself."
        )


class Bookmark(NamedTuple):
    """A position of a run, from which a state can be made at any later time.

    Args:
        progress: of the Loader.
        mark: the position.
        acknowledged: the acknowledged mark at that time, to detect whether the run has moved since.
        global_batch: samples per step over all ranks.
        journal: the changes up to then.
        past: what was seen of the epoch before.
    """

    progress: Progress
    mark: Mark
    acknowledged: Mark
    global_batch: int
    journal: Journal
    past: dict[str, Any] | None

    def state_dict(self) -> dict[str, Any]:
        """Return the state at this position, as plain values."""
        return self.progress.state_at(self)


class Progress:
    """The position of a loader, which all of its iterators share, and the stream that is open there.

    Args:
        fetcher: gets the batches from a backend.
        options: the options of `wrap`.

    Attributes:
        moves: how often the position was set from outside, by loading, seeking, rewinding, or leaving an epoch. An
            iterator that finds it changed continues at the new position.
        noted: the fingerprint of the data, to be compared with a state.
    """

    def __init__(self, fetcher: Fetcher, options: Options) -> None:
        self._fetcher, self._options = fetcher, options
        self._batch_size = options.batch_size or 1
        self._global_batch: int | None = None  # fixed when the stream is first opened, or a state is loaded
        self._delivered = self._acknowledged = Mark(Cursor())
        self._in_flight: deque[Mark] = deque()
        self._last: _Last | None = None  # None if nothing was delivered since the position was set
        self._owner, self._opening = Owner(), Opening(fetcher, options)
        self._changes = Changes(fetcher)
        looks = options.compares_data and not options.evaluation and offers(fetcher.backend, SupportsStored)
        stored = fetcher.backend.stored if looks else None
        self.noted = DataFingerprint(stored, getattr(fetcher.backend, "length", None) or 0)
        self._stream: Stream | None = None
        self._opened_at: Mark | None = None
        self._turned: Mark | None = None  # the start of the next epoch, if peek() has already opened it
        self._lost: _Lost | None = None  # batches between the source's position and the loader's
        self._home: Mark | None = None  # the start of each pass for evaluation
        self._in_force: Mapping[str, Any] | None = None  # settings with which the open stream was opened
        self._untouched = True  # nothing was opened or loaded yet
        self._auto = options.ack == "auto"
        self._recorder = options.recorder
        self.moves = 0
        self.stopwatch = Stopwatch(fetcher)

    # ------------------------------------------------------------------ the position

    @property
    def delivered(self) -> Cursor:
        """The position after the last batch that was delivered."""
        return self._delivered.cursor

    @property
    def acknowledged(self) -> Cursor:
        """The position after the last batch that is in the weights."""
        return self._counts.cursor

    @property
    def in_flight(self) -> int:
        """Number of batches that were delivered, but not acknowledged."""
        return len(self._in_flight)

    @property
    def counted(self) -> tuple[int, int]:
        """How many global batches and samples are in the weights, over all epochs."""
        counts = self._counts
        return counts.global_step, counts.samples_seen

    @property
    def steps_delivered(self) -> int:
        """How many global batches were delivered, over all epochs."""
        return self._delivered.global_step

    @property
    def has_delivered(self) -> bool:
        """Whether a batch was delivered since the position was set."""
        return self._last is not None

    @property
    def global_batch(self) -> int:
        """Samples per step over all ranks."""
        return self._global_batch or self._batch_size * self._fetcher.world().size

    @property
    def first_global_batch(self) -> int:
        """Samples per step of the run's first epoch."""
        return self._changes.first_global_batch(self.global_batch)

    @property
    def history(self) -> History:
        """The plans of the run up to the delivered position."""
        return self._changes.history(self._delivered.cursor, self.global_batch)

    @property
    def following(self) -> Cursor:
        """The position of the next batch to be delivered: in the next epoch if this one has none left."""
        cursor, source = self._delivered.cursor, self._delivered.source
        ended = source is not None and source.ended and cursor.position > 0
        over = ended or self._fetcher.finished(cursor, self.global_batch)
        return self._fetcher.following(cursor, self.global_batch) if over else cursor

    @property
    def _counts(self) -> Mark:
        """The mark that a state holds if it is taken now."""
        last = self._last
        return self._acknowledged if last is None or not self._failed(last) else last.before

    def _failed(self, last: _Last) -> bool:
        """Return whether the last batch does not count now, because an exception raised after it is being handled."""
        if not self._auto or last.is_settled:
            return False
        error = sys.exception()
        if error is None or isinstance(error, (StopIteration, StopAsyncIteration)):  # a loop's end is not a failure
            return False
        if threading.get_ident() != self._owner.reader:  # whose exception says nothing about the loop
            return False
        return not _was_there(error, last.handled)

    # ------------------------------------------------------------------ batches

    def begin(self) -> int:
        """Start a loop: check the ranks, and return the epoch of the next batch."""
        self._opening.check_ranks()
        self.stopwatch.begin_loop()
        return self._delivered.cursor.epoch

    def next_batch(self, epoch: int) -> Any:
        """Deliver the next batch of an epoch.

        Raises:
            StopIteration: the epoch is over.
            UnsupportedError: a different thread is reading, or a different process opened the stream.
        """
        self._owner.enter()
        if self._last is not None:
            self._complete(self._last)  # now, because the source moves to the next batch, or to its end
            self._last.is_settled = True
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
        recorder, before, waiting = self._recorder, self._delivered, len(self._in_flight)
        if self._stream is None:
            self._open()
        if recorder is not None:
            recorder.reading(before.cursor, before.global_step)
        assert self._stream is not None
        try:
            batch, cursor = self._stream.take()
            self._deliver(cursor)
        except StopIteration:
            self._close()
            self._finish(epoch)
            raise
        except BaseException:
            self._undo(before, waiting)
            raise
        if recorder is not None:
            recorder.delivered()
        return batch

    def _deliver(self, cursor: Cursor) -> None:
        before = self._delivered
        whole = before is self._opened_at or before.source is not None or not self._fetcher.remembers
        last = _Last(before, sys.exception(), whole)
        if self._auto:
            self._last = last  # before anything else, because an interrupt may happen in between
            self._stand_at(before.delivered(cursor, in_force=self._in_force))
        else:
            source = self._fetcher.source_state(asked=False)
            delivered = before.delivered(cursor, source, self._fetcher.canary(), self._in_force)
            self._last = last
            self._in_flight.append(delivered)
            self._delivered = delivered

    def _undo(self, before: Mark, waiting: int) -> None:
        """Go back to before a batch that was interrupted or could not be read: the next `next()` reads it again.

        Args:
            before: the mark before it.
            waiting: how many batches were in flight.
        """
        last = self._last
        delivering = last is not None and last.before is before and not last.is_settled
        if not self._auto:
            while len(self._in_flight) > waiting:
                self._in_flight.pop()
            self._delivered = before
        elif delivering and last is not None:  # interrupted after the batch was counted
            self._stand_at(self._complete(last))
        # The stream is about to be closed, so the mark needs the source's state. The mark at which it was opened has
        # it.
        elif before is not self._opened_at:
            self._stand_at(self._here(before))
        if delivering:
            self._last = None
        self._close()

    def take_back(self, batch: Any) -> None:
        """Undo the delivery of a batch that did not reach its loop: the next `next()` delivers it."""
        last, cursor = self._last, self._delivered.cursor
        if last is None:
            return  # the position was set meanwhile
        before, self._last = self._complete(last), None
        if self._auto:
            self._stand_at(before)
        else:
            self._in_flight.pop()
            self._delivered = before
        if self._stream is not None:
            self._stream.put_back(batch, cursor)

    def rewind(self, *, leaves: bool = False) -> None:
        """Go back to after the last acknowledged batch; with `ack="auto"`, to before the last delivered one.

        Args:
            leaves: the epoch or the training run ends here. A source that cannot go back raises only if a batch of
                this epoch is requested again.

        Raises:
            UnsupportedError: the source cannot go back. Nothing was changed.
        """
        if self._auto:
            mark = None if self._last is None else self._complete(self._last)
        else:
            mark = self._acknowledged if self._in_flight else None
        if mark is None:
            return
        lost = (
            _Lost(self._delivered.cursor, mark.cursor) if mark.source is None and self._fetcher.traits.goes_on else None
        )
        if lost is not None and not leaves:
            raise lost.error()
        self._move(mark)
        self._lost = lost

    def begin_again(self) -> None:
        """Go to the position that the loader had at the first call: each pass for evaluation starts there."""
        if self._home is not None:
            self._move(self._home)
            return
        self._touch()
        mark = self._acknowledged
        self._home = mark._replace(source=self._fetcher.begins_with(mark.source))

    def close(self) -> None:
        """End the stream, and anything of the source that stays open between epochs; the position stays.

        Raises:
            UnsupportedError: a batch is being read.
        """
        if self._owner.is_copy:
            return  # a different process owns the stream
        with self._owner.closing():
            if self._stream is not None:
                self._stream.refuse_inside()
                if self._last is not None:
                    self._complete(self._last)  # the source is about to be closed
                if self._auto:
                    self._stand_at(self._mark_now())
            self._close()
            close_backend(self._fetcher.backend)

    def let_go(self) -> None:
        """Drop the open stream without waiting for it, as the garbage collector would."""
        self._stream = None

    def acknowledge(self, batches: int) -> None:
        """Count the oldest batches in flight as trained on.

        Raises:
            ConfigurationError: the loader has `ack="auto"`, or fewer batches are in flight.
        """
        if self._auto:
            raise ConfigurationError(
                'ack() was called, but the loader was wrapped with ack="auto".\n'
                'Each batch counts when it is delivered. Wrap with ack="manual" to decide it yourself.'
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
        """Change who acknowledges, from the last acknowledged batch on."""
        if self._auto != (ack == "auto"):
            mark = self._mark_now()
            if self._in_flight:
                self._in_flight.clear()
                self._close()
            self._stand_at(mark)
            self._auto, self._last = ack == "auto", None

    def fingerprint(self) -> dict[str, Any]:
        """Return what a state must have in common with the loader, as plain values by dotted names."""
        return self._fetcher.fingerprint()

    # ------------------------------------------------------------------ a look ahead

    def peek(self) -> Any:
        """Return the next batch without advancing; after an epoch's last batch, the first batch of the next epoch.

        Raises:
            UnsupportedError: as in `next_batch`.
            DataError: no batch is left.
        """
        self._owner.enter()
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
        if self._stream is not None and self._stream.is_ahead:
            return self._stream.peek()
        if self._last is not None:
            self._complete(self._last)  # the source is about to move past it
        if self._auto and self._stream is not None:
            self._stand_at(self._mark_now())
        try:
            return self._look()
        except StopIteration:
            return self._look_past_end()
        except BaseException:
            self._close()
            raise

    def _look(self) -> Any:
        if self._stream is None:
            self._open()
        assert self._stream is not None
        return self._stream.peek()

    def _look_past_end(self) -> Any:
        """Open the next epoch, and stay at the end of this one."""
        self._close()
        turned = self._after_epoch()
        stream = self._opened(turned)
        try:
            batch = stream.peek()
        except StopIteration:
            raise DataError(
                "peek() was called, but the source yields no batch.\n"
                "A loop over it would be empty. Check that the data exists."
            ) from None
        self._stream, self._turned = stream, turned
        return batch

    # ------------------------------------------------------------------ epochs

    def end_epoch(self) -> None:
        """Count the epoch as done, even if batches are left.

        Raises:
            ConfigurationError: batches are in flight.
        """
        if self._in_flight:
            raise ConfigurationError(
                f"epoch {self.acknowledged.epoch} was left with {len(self._in_flight)} delivered batches that were not "
                "acknowledged.\nThe next epoch would count them as trained on. Call ack() after each optimizer step, "
                "or rewind() to go back to where the weights are."
            )
        left = self._delivered
        if left.cursor.epoch > self._acknowledged.cursor.epoch:  # its end was reached before the last ack()
            self._acknowledged = left
            return
        mark = self._mark_now()
        if self._stream is not None and self._stream.is_ahead:
            self._close()  # the source is past the mark
        source = self._fetcher.leave(mark, self.global_batch)
        start, plan = self._fetcher.following(mark.cursor, self.global_batch), self._plan()
        if plan is not None and start != plan.beginning(start.epoch, mark.cursor):
            self._changes.leave(start, self.global_batch)
        self._move(mark.at(start, source))
        if self._recorder is not None:
            self._recorder.between(left.cursor, left.global_step)

    def is_last(self) -> bool:
        """Return whether the batch that was delivered last is the last one of its epoch.

        If the source does not know how many samples there are, the next batch is read; the position stays.
        """
        if self._fetcher.finished(self._delivered.cursor, self.global_batch):
            return True
        if self._fetcher.unit == "sample" or self._stream is None:
            return False
        self._owner.enter()
        self.stopwatch.start()
        try:
            if self._last is not None:
                self._complete(self._last)
            self._look()
        except StopIteration:
            return True
        finally:
            self.stopwatch.stop(self._delivered.cursor)
            self._owner.leave()
        return False

    def padding(self, start: int, stop: int) -> int:
        """Count the samples that only fill up a global batch, from its positions; they are its last ones."""
        plan = self._plan()
        return 0 if plan is None else plan.padding(start, stop)

    def last_padding(self) -> int:
        """Count the samples that only fill up the last batch of an epoch."""
        plan, epoch = self._plan(), self._delivered.cursor.epoch
        if plan is None:
            return 0
        first = plan.beginning(epoch, Cursor())
        return self.padding(first.position, plan.ahead(first, plan.total(first)).position)

    def smallest(self) -> int | None:
        """Return the samples of an epoch's smallest global batch; None if the source does not know its length."""
        plan = self._plan()
        return None if plan is None else plan.smallest(plan.beginning(self._delivered.cursor.epoch, Cursor()))

    def _plan(self) -> Plan | None:
        return self._fetcher.plan(self.global_batch)

    # ------------------------------------------------------------------ the ranks

    @property
    def world(self) -> World:
        """Rank and world size with which the batches are divided."""
        return self._options.find_world()

    def divide_among(self, world: World) -> None:
        """Set the rank and world size with which the trainer divides data; used if `wrap` got none."""
        self._options.ranks.suggest(world)

    def stand_together(self, together: bool) -> None:
        """Set whether all ranks are at the same position, or an integration lets some of them catch up."""
        self._options.ranks.together = together

    @contextmanager
    def catching_up(self) -> Iterator[None]:
        """Read without the other ranks, up to their position: none of them waits."""
        self._options.ranks.catching_up = True
        try:
            yield
        finally:
            self._options.ranks.catching_up = False

    def share_evaluation(self) -> None:
        """Declare that an integration combines the scores of all ranks, so the log need not warn."""
        self._opening.shares = True

    @property
    def strided(self) -> bool:
        """Whether a rank takes every W-th sample of a global batch, instead of one contiguous part."""
        return self._fetcher.interleaved

    # ------------------------------------------------------------------ the position, as a state

    def bookmark(self) -> Bookmark:
        """Return the current position, from which a state can be made now or later.

        Warns:
            LoopWarning: an exception is being handled, and the state does not count the last batch.
        """
        mark = self._mark_to_save()
        journal, past = self._changes.journal(mark), self._fetcher.past(mark)
        return Bookmark(self, mark, self._acknowledged, self.global_batch, journal, past)

    def state_dict(self) -> dict[str, Any]:
        """Return the state at the current position, as plain values.

        Warns:
            LoopWarning: an exception is being handled, and the state does not count the last batch.
        """
        mark = self._mark_to_save()
        return self._state_of(mark, self.global_batch, self._changes.journal(mark), self._fetcher.past(mark))

    def _mark_to_save(self) -> Mark:
        self._opening.check_ranks()
        mark = self._mark_that_counts()
        if self._recorder is not None:
            self._recorder.state_taken(mark.global_step)
        return mark

    def state_at(self, bookmark: Bookmark) -> dict[str, Any]:
        """Return the state at a bookmark, as plain values."""
        mark, journal, past = bookmark.mark, bookmark.journal, bookmark.past
        if self._acknowledged is bookmark.acknowledged:
            # Nothing was trained since. The source's state may be complete by now. Settings that were changed after an
            # epoch's last batch was counted also belong to this position.
            source = self._fetcher.source_now(mark.source)
            mark = mark if source is mark.source else mark._replace(source=source)
            journal, past = self._changes.journal(mark), self._fetcher.past(mark)
        return self._state_of(mark, bookmark.global_batch, journal, past)

    def load(self, state: State, mark: Mark, global_batch: int) -> None:
        """Go to the position of a state, and use its samples per step and its settings from now on."""
        self._global_batch = global_batch
        self._move(mark)
        self._opening.loaded()
        self._changes.load(state, mark.cursor, global_batch)

    def go_to(self, cursor: Cursor) -> None:
        """Go to any position. Only for a source that needs no state for that."""
        self._changes.seek(cursor, self.global_batch)
        self._move(self._acknowledged.at(cursor, None))
        self._opening.moved("after seek()")

    def read_from(self, fetcher: Fetcher, options: Options) -> None:
        """Continue with a new fetcher of the same source, with a state's seed and name."""
        self._close()
        close_backend(self._fetcher.backend)
        self._fetcher, self._options, self._opening = fetcher, options, self._opening.of(fetcher, options)
        self._changes = Changes(fetcher)

    # ------------------------------------------------------------------ inside

    def _mark_that_counts(self) -> Mark:
        last = self._last
        if last is None or not self._failed(last):
            return self._mark_now()
        before = self._complete(last)
        cursor = before.cursor
        told = _IN_EXCEPT.format(type(sys.exception()).__name__, cursor.step, cursor.epoch)
        warn(told, LoopWarning)
        return before

    def _complete(self, last: _Last) -> Mark:
        """Return the mark before the last batch, with the state that the source had there."""
        if not last.is_whole:
            source, canary = self._fetcher.state_before(last.before.cursor)
            last.before = last.before._replace(source=source, canary=canary)
            last.is_whole = True
        return last.before

    def _mark_now(self) -> Mark:
        mark = self._acknowledged
        # With "auto", a mark gets the source's state only if someone asks. The source can still return it while the
        # stream is open and has not peeked at the next batch. The mark at which the stream was opened has it.
        live = self._stream is not None and not self._stream.is_ahead and mark is not self._opened_at
        if self._untouched or (self._auto and live):
            return self._here(mark)
        source = self._fetcher.source_now(mark.source)
        return mark if source is mark.source else mark._replace(source=source)

    def _here(self, mark: Mark) -> Mark:
        """Return a mark with the source's current state and canary."""
        return mark._replace(source=self.source_state(), canary=self._fetcher.canary())

    def source_state(self) -> SourceState | None:
        """Return the source's state after the last batch, if it has one."""
        if self._last is not None:
            self._complete(self._last)  # taking another snapshot would replace the one it needs
        return self._fetcher.source_state()

    def _touch(self) -> None:
        """Keep the state that the source had when it was wrapped."""
        if self._untouched:
            self._untouched = False
            self._stand_at(self._here(self._acknowledged))

    def _state_of(self, mark: Mark, global_batch: int, journal: Journal, past: dict[str, Any] | None) -> dict[str, Any]:
        fetcher = self._fetcher
        facts, noted = (fetcher.fingerprint(), fetcher.unit, journal), self.noted.as_dict()
        state = State(mark, global_batch, self._batch_size, *facts, data=noted, past=past)
        return state.as_dict(self._options.find_world().size)

    def _open(self) -> None:
        if self._lost is not None:
            raise self._lost.error()
        if self._global_batch is None:
            self._global_batch = self.global_batch
        self._touch()
        self._stream = self._opened(self._delivered)

    def _opened(self, mark: Mark) -> Stream:
        self.stopwatch.opens(self._fetcher)
        self._opened_at = mark
        if self._recorder is not None:
            self._recorder.begin(self._fetcher.world(), self._fetcher.fingerprint(), mark.cursor, mark.global_step)
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
        stream, self._stream = self._stream, None  # before anything else, because closing may be interrupted
        if stream is not None:
            if self._owner.is_elsewhere:
                _copies.append(stream)  # closing it would wait for workers of a different process
            else:
                stream.close()
        self._owner.closed()

    def _stand_at(self, mark: Mark) -> None:
        self._delivered = self._acknowledged = mark

    def _move(self, mark: Mark) -> None:
        self.moves += 1
        self._untouched, self._last = False, None
        self._close()
        self._in_flight.clear()
        self._lost = None
        self._stand_at(mark)

    def _finish(self, epoch: int) -> None:
        """Go to the next epoch; this one counts as done once all of its batches are acknowledged."""
        if self._delivered.cursor.epoch != epoch:
            return
        if self._recorder is not None:
            self._recorder.between(self._delivered.cursor, self._delivered.global_step)
        after = self._after_epoch()
        if self._in_flight:
            self._delivered = after
        else:
            self._stand_at(after)

    def _after_epoch(self) -> Mark:
        if self._turned is not None:
            turned, self._turned = self._turned, None
            return turned
        following = self._fetcher.following(self._delivered.cursor, self.global_batch)
        return self._delivered.at(following, self._fetcher.source_state())


def _was_there(error: BaseException, handled: BaseException | None) -> bool:
    """Return whether an exception was being handled already, or is in the context of the one that was."""
    seen: set[int] = set()
    while handled is not None and id(handled) not in seen:
        if handled is error:
            return True
        seen.add(id(handled))
        handled = handled.__context__
    return False
