"""Loader: the only object with a state."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Literal

from resumable._state import agree_on_batch, check_intact, check_position, check_same, parse
from resumable.cursor import Cursor
from resumable.errors import ConfigurationError, UnsupportedError
from resumable.faults import notice, point
from resumable.feeds import IndexedFeed
from resumable.iteration import BatchIterator, Epoch
from resumable.progress import Progress
from resumable.schedule import check_share
from resumable.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from resumable.feeds import Feed
    from resumable.options import Options

__all__ = ["Loader"]


class Loader:
    """Iterates over batches, and can be stopped and resumed at any of them. `resumable.wrap` makes one.

    Iterating goes on where the loader stands: after `break`, or after a state was loaded, the next `for` goes through
    the rest of the epoch; after an epoch's last batch, through the next epoch. An epoch that gave all its batches is
    over, however the loop was left, and also where the source has elements left that make no whole batch.

    Args:
        feed: gets the batches from a backend.
        options: the options of `wrap`.

    Attributes:
        progress: what is delivered, in flight and acknowledged; for integrations that drive the loader themselves.
    """

    def __init__(self, feed: Feed, options: Options) -> None:
        self._feed, self._options = feed, options
        self.progress = Progress(feed, options)
        notice("loader.wrapped")

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
        return self._feed.schedule(self.global_batch_size) is not None

    def total_steps(self, epoch: int) -> int:
        """Count the global batches of an epoch: those behind and those left.

        Raises:
            TypeError: nobody knows the length of this source before its end.
        """
        schedule = self._feed.schedule(self.global_batch_size)
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
        progress = self.progress
        while (number := progress.acknowledged.epoch) < total:
            moves = progress.moves
            yield Epoch(self, number)
            if progress.moves == moves and progress.acknowledged.epoch == number:
                self.end_epoch()

    # ------------------------------------------------------------------ the place

    @property
    def cursor(self) -> Cursor:
        """How far the loader is: after the last batch that was delivered."""
        return self.progress.delivered

    @property
    def acknowledged(self) -> Cursor:
        """How far a state that is taken now would be: the cursor, or with `ack="manual"` what `ack()` confirmed."""
        return self.progress.acknowledged

    @property
    def ack_mode(self) -> Literal["auto", "manual"]:
        """Who acknowledges: the loader itself, or `ack()`."""
        return self.progress.ack_mode

    @property
    def epoch(self) -> int:
        """Number of the epoch that a new `for batch in loader` reads: the next one where this one has no batch left."""
        return self.progress.following.epoch

    @property
    def global_batch_size(self) -> int:
        """Samples per step over all ranks, `G`."""
        return self.progress.global_batch

    def ack(self, batches: int = 1) -> None:
        """Confirm that the oldest batches that were delivered are in the weights (`ack="manual"`).

        Args:
            batches: how many.

        Raises:
            ConfigurationError: the loader acknowledges by itself, or fewer batches are waiting.
        """
        self.progress.acknowledge(batches)
        point("loader.acked", self)

    def seek(self, *, epoch: int, step: int = 0) -> None:
        """Go to any batch; the next one delivered is number `step` of `epoch`. O(1) where samples are indexed.

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
        if self._feed.source_state() is not None:
            raise UnsupportedError(
                "seek() needs a source that can be read at any place or from its beginning, but this one resumes by "
                "its own snapshots.\nA snapshot of that batch does not exist. Load a state that was taken there."
            )
        schedule = self._feed.schedule(self.global_batch_size)
        at = schedule.at(epoch, step) if schedule else Cursor(epoch, step * self.global_batch_size, step)
        self.progress.go_to(at)

    def end_epoch(self) -> None:
        """Count the epoch as done, whatever is left of it: the next batch is the first one of the next epoch.

        Raises:
            ConfigurationError: batches that were delivered are waiting to be acknowledged.
        """
        self.progress.end_epoch()
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
        schedule = self._feed.schedule(self.global_batch_size)
        cursor = schedule.at(epoch, step)
        if schedule.finished(cursor):
            raise ConfigurationError(
                f"epoch {epoch} has {step} batches, so there is no step {step}: steps count from 0."
            )
        world = World() if rank is None else World(rank, self._feed.world().size)
        return self._feed.sample_indices(cursor, schedule, world)

    # ------------------------------------------------------------------ the state

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last acknowledged batch: fresh plain values, below 1 kB for indexed sources.

        Save it with the model. `load_state_dict` in another process makes the pair go on as if nothing had happened.
        """
        state = self.progress.bookmark()()
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
        state = parse(state_dict, self._feed.can)
        check_same(state.facts, self._feed.facts(), strict=strict, hints=self._feed.can.hints)
        world, options = self._feed.world(), self._options
        global_batch = agree_on_batch(state, options.batch_size, world.size, options.on_batch_change)
        check_share(global_batch, world, uneven=options.uneven)
        if strict and isinstance(self._feed, IndexedFeed):
            check_position(state, self._feed.schedule(global_batch))
        check_intact(state)
        self.progress.load(state, global_batch)
        point("loader.loaded", self)
