"""Loader: the only object with a state."""

from __future__ import annotations

import operator
from collections import deque
from typing import TYPE_CHECKING, Any, Literal

from resumable.closing import close
from resumable.cursor import Cursor
from resumable.errors import ConfigurationError, UnsupportedError
from resumable.faults import point
from resumable.feeds import IndexedFeed
from resumable.iteration import BatchIterator, Epoch
from resumable.schedule import check_share
from resumable.state import Mark, State, agree_on_batch, check_position, check_same, parse
from resumable.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from resumable.feeds import Feed
    from resumable.options import Options

__all__ = ["Loader"]


class Loader:
    """Iterates over batches, and can be stopped and resumed at any of them. `resumable.wrap` makes one.

    Iterating goes on where the loader stands: after `break`, or after a state was loaded, the next `for` goes through
    the rest of the epoch; after an epoch's last batch, through the next epoch. An epoch is empty only where it was left
    behind its last batch, and nobody but the source can tell that.

    Args:
        feed: gets the batches from a backend.
        options: the options of `wrap`.
    """

    def __init__(self, feed: Feed, options: Options) -> None:
        self._feed = feed
        self._options = options
        self._batch_size = options.batch_size or 1
        self._global_batch: int | None = None  # fixed when the stream is first opened, or by a loaded state
        self._handed = self._acked = Mark(Cursor())
        self._unacked: deque[Mark] = deque()
        self._stream: Iterator[tuple[Any, Cursor]] | None = None
        self._opened_at: Mark | None = None
        self._ended: tuple[Mark, Mark] | None = None  # an epoch's last batch, not acknowledged at its end; behind it
        self._untouched = True  # nothing was opened or loaded yet
        self._moves = 0  # how often the place was set from outside, by loading or seeking
        self._auto = options.ack == "auto"

    def __bool__(self) -> bool:
        """A loader is true, also where nobody knows its length."""
        return True

    def __reduce__(self) -> str:
        raise UnsupportedError(
            "a Loader cannot be copied or pickled: it stands at a place in a stream of this process.\n"
            "A copy would read the same batches again, or skip some. Wrap the source anew and give the new Loader this "
            "one's state_dict()."
        )

    def __repr__(self) -> str:
        kind = self._feed.facts()["backend.kind"]
        return f"<Loader of {kind}, batches of {self.global_batch_size}, at {self.cursor}>"

    # ------------------------------------------------------------------ iterating

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the rest of this epoch, or over the next one where nothing is left.

        Nothing is read before its first `next()`: an iterator that is thrown away costs nothing and changes nothing.
        """
        return BatchIterator(self)

    def __len__(self) -> int:
        """Count the batches of the whole epoch, of which some may be behind; the same on every rank, or a TypeError."""
        return self.total_steps(self.epoch)

    @property
    def is_sized(self) -> bool:
        """Whether `len()` works: whether the number of batches of an epoch is known before its end."""
        return self._feed.schedule(self._current_global_batch()) is not None

    def total_steps(self, epoch: int) -> int:
        """Count the global batches of an epoch: those behind and those left.

        Raises:
            TypeError: nobody knows the length of this source before its end.
        """
        schedule = self._feed.schedule(self._current_global_batch())
        if schedule is None:
            raise TypeError("this source has no length: nobody knows before its end how many batches an epoch has")
        return schedule.total(schedule.beginning(epoch, self.cursor))

    def epochs(self, total: int) -> Iterator[Epoch]:
        """Iterate over the epochs up to the number `total`, from the one in which the loader stands.

            for epoch in loader.epochs(10):
                for batch in epoch:
                    ...
                validate()

        Resumed from a state that was taken behind an epoch's last batch, the loop first gives that epoch, with no batch
        left, so that what stands behind the inner loop is done once and not skipped. A state taken behind the inner
        loop counts the epoch as done. An epoch that is left by `break` is over, and its rest is not read.

        Args:
            total: number of epochs of the whole run, those before a resume included.
        """
        while (number := self._acked.cursor.epoch) < total:
            moves = self._moves
            yield Epoch(self, number)
            if self._moves == moves and self._acked.cursor.epoch == number:
                self.end_epoch()

    def next_batch(self, epoch: int) -> Any:
        """Hand over the next batch of an epoch; for iterators.

        Raises:
            StopIteration: the epoch is over.
        """
        point("loader.fetch", self)
        if self._stream is None:
            self._open()
        assert self._stream is not None
        try:
            batch, cursor = next(self._stream)
            self._hand_over(cursor)
        except StopIteration:
            self._close()
            self._finish(epoch)
            raise
        except BaseException:
            if self._auto and self._acked is not self._opened_at:
                self._handed = self._acked = Mark(self._acked.cursor, self._feed.native())
            self._close()
            raise
        point("loader.handed", self, batch)
        return batch

    # ------------------------------------------------------------------ the place

    @property
    def cursor(self) -> Cursor:
        """How far the loader is: behind the last batch that was handed over."""
        return self._handed.cursor

    @property
    def acknowledged(self) -> Cursor:
        """How far a state that is taken now would be: the cursor, or with `ack="manual"` what `ack()` confirmed."""
        return self._acked.cursor

    @property
    def epoch(self) -> int:
        """Number of the epoch that a new `for batch in loader` reads: the next one where this one has no batch left."""
        return self._next_cursor().epoch

    @property
    def global_batch_size(self) -> int:
        """Samples per step over all ranks, `G`."""
        return self._current_global_batch()

    def ack(self, batches: int = 1) -> None:
        """Confirm that the oldest batches that were handed over are in the weights (`ack="manual"`).

        Args:
            batches: how many.

        Raises:
            ConfigurationError: the loader acknowledges by itself, or fewer batches are waiting.
        """
        if self._auto:
            raise ConfigurationError(
                'ack() was called, but the loader was wrapped with ack="auto".\n'
                'Each batch counts as trained on once it is handed over. Wrap with ack="manual" to decide it yourself.'
            )
        if not 0 <= batches <= len(self._unacked):
            raise ConfigurationError(
                f"ack({batches}) was called, but {len(self._unacked)} batches are waiting to be acknowledged.\n"
                "The state would run ahead of the weights. Acknowledge each batch once, after its optimizer step."
            )
        for _ in range(batches):
            self._acked = self._unacked.popleft()
        point("loader.acked", self)

    def seek(self, *, epoch: int, step: int = 0) -> None:
        """Go to any batch; the next one handed over is number `step` of `epoch`. O(1) where samples are indexed.

        Args:
            epoch: from 0.
            step: from 0 to the number of batches in the epoch; counted with the global batch that is in force now.

        Raises:
            ConfigurationError: there is no such batch.
            UnsupportedError: the source resumes by its own snapshots, which exist only for places it was at.
        """
        epoch, step = operator.index(epoch), operator.index(step)
        if epoch < 0 or step < 0:
            raise ConfigurationError(f"there is no epoch {epoch} with a step {step}: both count from 0.")
        if self._feed.native() is not None:
            raise UnsupportedError(
                "seek() needs a source that can be read at any place or from its beginning, but this one resumes by "
                "its own snapshots.\nA snapshot of that batch does not exist. Load a state that was taken there."
            )
        size = self._current_global_batch()
        schedule = self._feed.schedule(size)
        self._set(Mark(schedule.at(epoch, step) if schedule else Cursor(epoch, step * size, step)))

    def end_epoch(self) -> None:
        """Count the epoch as done, whatever is left of it: the next batch is the first one of the next epoch.

        Raises:
            ConfigurationError: batches that were handed over are waiting to be acknowledged.
        """
        if self._unacked:
            raise ConfigurationError(
                f"epoch {self._acked.cursor.epoch} was left with {len(self._unacked)} batches that were handed over "
                "and not acknowledged.\nThe next epoch would count them as trained on. Call ack() after each optimizer "
                "step, or seek() to where the weights are."
            )
        if self._ended is not None and self._ended[0] is self._acked:  # the source has come to its end since
            self._set(self._ended[1])
            point("loader.epoch_end", self)
            return
        cursor = self._acked.cursor
        asked_now = self._stream is not None or self._untouched
        native = self._feed.native() if asked_now else self._acked.native
        if native is not None and "ended" not in native:
            native = {"before": native, "position": cursor.position, "skip": 0}
        self._set(Mark(self._feed.following(cursor, self._current_global_batch()), native))
        point("loader.epoch_end", self)

    def sample_indices(self, *, epoch: int, step: int, rank: int | None = None) -> list[int]:
        """Tell which samples are in a batch, in their order, without reading any.

        Args:
            epoch: from 0.
            step: number of the batch in the epoch, from 0, counted with the global batch that is in force now.
            rank: whose part of the batch; None for the whole global batch.

        Raises:
            ConfigurationError: there is no such batch or rank.
            UnsupportedError: the source has no sample indices.
        """
        if not isinstance(self._feed, IndexedFeed):
            raise UnsupportedError("this source has no sample indices: it gives elements in an order of its own.")
        if epoch < 0:
            raise ConfigurationError(f"there is no epoch {epoch}: epochs count from 0.")
        schedule = self._feed.schedule(self._current_global_batch())
        cursor = schedule.at(epoch, step)
        if schedule.finished(cursor):
            raise ConfigurationError(
                f"epoch {epoch} has {step} batches, so there is no step {step}: steps count from 0."
            )
        world = World() if rank is None else World(rank, self._feed.world().size)
        return self._feed.sample_indices(cursor, schedule, world)

    # ------------------------------------------------------------------ the state

    def state_dict(self) -> dict[str, Any]:
        """Return the state behind the last acknowledged batch: fresh plain values, below 1 kB for indexed sources.

        Save it with the model. `load_state_dict` in another process makes the pair go on as if nothing had happened.
        """
        state = self.bookmark()()
        point("loader.state", self, state)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go to the place at which a state was taken. Valid at any time, also in the middle of a loop.

        Args:
            state_dict: what `state_dict()` returned; left as it is.
            strict: refuse a state of other data, another order or another configuration. Without, differences are
                warned about and the loader goes on at the state's place.

        Raises:
            StateFormatError: it is no state, or truncated, or of a newer version.
            StateMismatchError: it does not belong to this loader; the message names the field, both values and the way
                out.

        In case of an error nothing was changed.
        """
        point("loader.load", self, state_dict)
        state = parse(state_dict)
        check_same(state.facts, self._feed.facts(), strict=strict, remedies=self._feed.remedies())
        world, options = self._feed.world(), self._options
        global_batch = agree_on_batch(state, options.batch_size, world.size, options.on_batch_change)
        check_share(global_batch, world, uneven=options.uneven)
        if strict and isinstance(self._feed, IndexedFeed):
            check_position(state, self._feed.schedule(global_batch))
        self._global_batch = global_batch
        self._set(state.mark)
        point("loader.loaded", self)

    # ------------------------------------------------------------------ for integrations

    def bookmark(self) -> Callable[[], dict[str, Any]]:
        """Return a function that makes the state of the place at which the loader stands now; for integrations."""
        mark = self._mark_now()
        return lambda: self._state_of(mark)

    @property
    def ack_mode(self) -> Literal["auto", "manual"]:
        """Who acknowledges: the loader itself, or `ack()`."""
        return "auto" if self._auto else "manual"

    def set_ack(self, ack: Literal["auto", "manual"]) -> None:
        """Change who acknowledges, from the place at which the loader stands now; for integrations."""
        if self._auto != (ack == "auto"):
            self._unacked.clear()
            mark = self._mark_now()
            self._close()
            self._handed = self._acked = mark
            self._auto = ack == "auto"

    def turn_over(self, epoch: int) -> None:
        """Go on behind the end of an epoch, some of whose batches are not acknowledged yet; for integrations."""
        if self._handed.cursor.epoch == epoch:
            self._close()
            following = self._feed.following(self._handed.cursor, self._current_global_batch())
            self._handed = Mark(following, self._feed.native())

    # ------------------------------------------------------------------ inside

    def begin(self) -> int:
        """Go back to behind the last acknowledged batch, and return the number of the epoch; for iterators."""
        if self._unacked:
            self._rewind()
        return self._acked.cursor.epoch

    @property
    def moves(self) -> int:
        """How often the place was set from outside; for iterators."""
        return self._moves

    def _mark_now(self) -> Mark:
        mark = self._acked
        if self._untouched or (self._auto and self._stream is not None and mark is not self._opened_at):
            mark = Mark(mark.cursor, self._feed.native())
        return mark

    def _state_of(self, mark: Mark) -> dict[str, Any]:
        state = State(mark, self._current_global_batch(), self._batch_size, self._feed.facts())
        return state.as_dict(self._options.find_world().size)

    def _open(self) -> None:
        if self._global_batch is None:
            self._global_batch = self._current_global_batch()
        if self._untouched:
            self._untouched = False
            self._handed = self._acked = Mark(self._acked.cursor, self._feed.native())
        self._opened_at = self._handed
        self._stream = self._feed.open(self._handed, self._global_batch)

    def _close(self) -> None:
        if self._stream is not None:
            close(self._stream)  # type: ignore[arg-type]  # feeds are generators
            self._stream = None

    def _set(self, mark: Mark) -> None:
        self._moves += 1
        self._untouched = False
        self._rewind()
        self._handed = self._acked = mark

    def _rewind(self) -> None:
        self._close()
        self._ended = None
        self._unacked.clear()
        self._handed = self._acked

    def _hand_over(self, cursor: Cursor) -> None:
        if self._auto:
            self._handed = self._acked = Mark(cursor)
        else:
            self._handed = Mark(cursor, self._feed.native(asked=False))
            self._unacked.append(self._handed)

    def _finish(self, epoch: int) -> None:
        """Count the epoch as done, unless a batch of it was not acknowledged yet."""
        if self._handed.cursor.epoch != epoch:
            return
        following = self._feed.following(self._handed.cursor, self._current_global_batch())
        mark = Mark(following, self._feed.native())
        if self._unacked:
            self._ended = self._handed, mark
            return
        self._handed = self._acked = mark
        point("loader.epoch_end", self)

    def _current_global_batch(self) -> int:
        return self._global_batch or self._batch_size * self._feed.world().size

    def _next_cursor(self) -> Cursor:
        cursor, size = self._handed.cursor, self._current_global_batch()
        return self._feed.following(cursor, size) if self._feed.finished(cursor, size) else cursor
