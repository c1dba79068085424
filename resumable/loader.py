"""Loader: the only object with a state."""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING, Any, Generic

from resumable._fetch import IndexedFetcher
from resumable._lifecycle import Closes
from resumable._loops import check_acknowledged, check_count, check_total, warn_of_no_step_left, warn_of_nothing_left
from resumable._order.cursor import Cursor
from resumable._order.plan import check_share
from resumable._order.world import World
from resumable._place import TellsPlace
from resumable._recorded import progress_of
from resumable._shown import ShowsSource
from resumable._state import LEAF, agree_on_batch, brought_along, check_intact, check_same, is_leaf, parse
from resumable.errors import ConfigurationError, UnsupportedError
from resumable.failpoints import notice, point
from resumable.iteration import BatchIterator, Epoch, EvaluationPass, StepIterator, T_co

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import TypeAlias

    from resumable._dcp import DCPState
    from resumable._fetch import Fetcher
    from resumable._options import Options
    from resumable._stats import LoaderStats

    Again: TypeAlias = Callable[[int, str], tuple[Fetcher, Options]]

__all__ = ["Loader"]


class Loader(Closes, ShowsSource, TellsPlace, Generic[T_co]):
    """Iterates over batches, and can be stopped and resumed at any of them. `resumable.wrap` makes one.

    Iterating goes on where the loader stands: after `break`, or after a state was loaded, the next `for` goes through
    the rest of the epoch; after an epoch's last batch, through the next epoch. An epoch that gave all its batches is
    over, however the loop was left, and also where the source has elements left that make no whole batch.

    What the source has opened, such as worker processes, stays open between two loops, so that the next one goes on at
    once. `close()` ends it, and so does the end of `with wrap(...) as loader:`.

    Args:
        fetcher: gets the batches from a backend.
        options: the options of `wrap`.
        wrapped: what was given to `wrap`, for messages.
        again: makes fetcher and options of it once more, with the seed and the name of a state.

    Attributes:
        progress: what is delivered, in flight and acknowledged; for integrations that drive the loader themselves.
        driver: the name of what loops over it in place of its own iterators, such as `prepare` for Accelerate; or none.
    """

    def __init__(self, fetcher: Fetcher, options: Options, wrapped: Any, again: Again) -> None:
        self._wrapped, self._again = wrapped, again
        self._read_from(fetcher, options)
        self.driver = ""
        self._resumed = False  # and the script has not asked since in which epoch
        self._gone_through = 0  # epochs of the run, by a loop over epochs() in this process
        self._loaded_step = 0  # the global step of the state that was loaded last
        self.progress = progress_of(fetcher, options)
        if not self.evaluation:
            notice("loader.wrapped")

    def _read_from(self, fetcher: Fetcher, options: Options) -> None:
        self._fetcher, self._options = fetcher, options
        self._shows = {"batch_size": options.batch_size, **fetcher.can.shows}

    def __bool__(self) -> bool:
        """A loader is true, also where its length is unknown."""
        return True

    def __reduce__(self) -> str:
        raise UnsupportedError(
            "a Loader cannot be copied or pickled: it stands at a place in a stream of this process.\n"
            "A copy would read the same batches again, or skip some. Save loader.state_dict() instead of the Loader; "
            "in another process, wrap the source again and load that."
        )

    def __repr__(self) -> str:
        kind = self._fetcher.fingerprint()["backend.kind"]
        return f"<Loader of {kind}, batches of {self.global_batch_size}, at {self.cursor}>"

    # ------------------------------------------------------------------ iterating

    def __iter__(self) -> Iterator[T_co]:
        """Return an iterator over the rest of this epoch, or over the next one where nothing is left.

        Nothing is read before its first `next()`: an iterator that is thrown away costs nothing and changes nothing.
        With `evaluation=True`, each iterator begins at the first batch of epoch 0.

        Warns:
            LoopWarning: the loader was resumed, and the loop around counts epochs from a lower number than its own.
        """
        if self._resumed:
            self._resumed = False
            check_count(sys._getframe(1), self._next_epoch)  # noqa: SLF001  # nothing else knows the loop
        return EvaluationPass(self) if self.evaluation else BatchIterator(self)

    def __len__(self) -> int:
        """Count the batches of the whole epoch, of which some may be done; the same on every rank, or a TypeError."""
        return self.total_steps(self._next_epoch)

    @property
    def is_sized(self) -> bool:
        """Whether `len()` works: whether the number of batches of an epoch is known before its end."""
        return self._fetcher.plan(self.global_batch_size) is not None

    def total_steps(self, epoch: int) -> int:
        """Count the global batches of an epoch: those done and those left.

        Raises:
            TypeError: the length of this source is unknown before its end.
        """
        plan = self._fetcher.plan(self.global_batch_size)
        if plan is None:
            raise TypeError("this source has no length: how many batches an epoch has is unknown before its end")
        return plan.total(plan.beginning(epoch, self.cursor))

    def epochs(self, total: int) -> Iterator[Epoch[T_co]]:
        """Iterate over the epochs up to the number `total`, from the one in which the loader stands.

            for epoch in loader.epochs(10):
                for batch in epoch:
                    ...
                validate()

        Resumed from a state that was taken after an epoch's last batch, the loop first gives that epoch, with no batch
        left, so that what stands after the inner loop is done once and not skipped. A state taken after the inner
        loop counts the epoch as done. An epoch that is left by `break` is over, and its rest is not read.

        Args:
            total: number of epochs of the whole run, those before a resume included.

        Warns:
            LoopWarning: there is none left, and an earlier loop in this process went through as many.
        """
        self._refuse_evaluation("epochs()")
        progress, self._resumed, last = self.progress, False, check_total("epochs", total)
        if progress.acknowledged.epoch >= last and self._gone_through >= last > 0:
            warn_of_nothing_left(last)
        while (number := progress.acknowledged.epoch) < last:
            moves = progress.moves
            yield Epoch(self, number)
            if progress.moves == moves and progress.acknowledged.epoch == number:
                self.end_epoch()
            self._gone_through = max(self._gone_through, number + 1)

    def steps(self, total: float) -> Iterator[T_co]:
        """Iterate over batches, through as many epochs as it takes, until `global_step` is `total`.

            for batch in loader.steps(100_000):
                ...

        Resumed, or called again after `break`, it goes on with the next batch. With `ack="manual"`, batches that wait
        to be acknowledged count, so that none is delivered beyond the total.

        Args:
            total: number of global batches of the whole run, those before a resume included; `math.inf` for no end.

        Raises:
            DataError: an epoch gives no batch at all, and neither does the next one.

        Warns:
            LoopWarning: there is none left, and they were delivered in this process.
        """
        self._refuse_evaluation("steps()")
        self._resumed, last = False, check_total("steps", total)
        if self.global_step >= last > self._loaded_step:
            warn_of_no_step_left(last, self.global_step)
        return StepIterator(self, last)

    # ------------------------------------------------------------------ the place

    @property
    def epoch(self) -> int:
        """Number of the epoch that a new `for batch in loader` reads: the next one where this one has no batch left."""
        self._resumed = False
        return self._next_epoch

    @property
    def _next_epoch(self) -> int:
        return self.progress.delivered.epoch if self.evaluation else self.progress.following.epoch

    def peek(self) -> T_co:
        """Return the batch that the next `next()` gives, the same object, and move nothing.

        A state that is taken now is that of before. After the last batch of an epoch it is the first one of the next.
        With it, the loader finds out how many ranks there are, as by reading a batch.

        Raises:
            UnsupportedError: the loader is for evaluation; or (`ack="manual"`) the epoch has no batch left, and some of
                its batches are not acknowledged.
            DataError: the source gives no batch at all.
        """
        self._refuse_evaluation("peek()", "next(iter(loader)) moves nothing that counts.")
        batch: T_co = self.progress.peek()
        return batch

    def ack(self, batches: int = 1) -> None:
        """Confirm that the oldest batches that were delivered are in the weights (`ack="manual"`).

        Args:
            batches: how many.

        Raises:
            ConfigurationError: the loader acknowledges by itself, or fewer batches are waiting.
        """
        self.progress.acknowledge(check_acknowledged(batches))
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
        self._refuse_evaluation("seek()")
        epoch, step = operator.index(epoch), operator.index(step)
        if epoch < 0 or step < 0:
            raise ConfigurationError(f"there is no epoch {epoch} with a step {step}: both count from 0.")
        if self._fetcher.source_state() is not None:
            raise UnsupportedError(
                "seek() needs a source that can be read at any place or from its beginning, but this one resumes by "
                "its own snapshots.\nA snapshot of that batch does not exist. Load a state that was taken there."
            )
        plan = self._fetcher.plan(self.global_batch_size)
        at = plan.at(epoch, step) if plan is not None else Cursor(epoch, step * self.global_batch_size, step)
        self._resumed, self._gone_through = False, 0
        self.progress.go_to(at)

    def end_epoch(self) -> None:
        """Count the epoch as done, whatever is left of it: the next batch is the first one of the next epoch.

        Raises:
            ConfigurationError: batches that were delivered are waiting to be acknowledged.
        """
        self._refuse_evaluation("end_epoch()")
        self.progress.end_epoch()
        point("loader.epoch_end", self)

    def sample_indices(self, *, epoch: int, step: int, rank: int | None = None) -> list[int]:
        """Return which samples are in a batch, in their order, without reading any.

        Args:
            epoch: from 0.
            step: number of the batch in the epoch, from 0, counted with the global batch that is in force now.
            rank: whose part of the batch; None for the whole global batch.

        Raises:
            ConfigurationError: there is no such batch or rank.
            UnsupportedError: the source has no sample indices.
        """
        if not isinstance(self._fetcher, IndexedFetcher):
            raise UnsupportedError("this source has no sample indices: it gives elements in an order of its own.")
        if epoch < 0:
            raise ConfigurationError(f"there is no epoch {epoch}: epochs count from 0.")
        plan = self._fetcher.plan(self.global_batch_size)
        cursor = plan.at(epoch, step)
        if plan.finished(cursor):
            raise ConfigurationError(
                f"epoch {epoch} has {step} batches, so there is no step {step}: steps count from 0."
            )
        world = World() if rank is None else World(rank, self._fetcher.world().size)
        return self._fetcher.sample_indices(cursor, plan, world)

    def consumed(self) -> dict[str, int]:
        """Return how many samples of each source of a mixture come before the place, over all epochs and ranks.

        It is computed from the place, so it is right after a resume, on any number of ranks. The last samples of an
        epoch that `tail="drop"` leaves out count as consumed once the next epoch has begun, and samples that only fill
        up a batch do not.

        Raises:
            UnsupportedError: the source is no mixture.
        """
        from resumable.samplers import Mixture  # noqa: PLC0415  # a part of the import that few need

        sampler = getattr(self._fetcher, "sampler", None)
        if not isinstance(self._fetcher, IndexedFetcher) or not isinstance(sampler, Mixture):
            raise UnsupportedError(
                "consumed() tells of the sources of a mixture, and this loader reads a single source.\n"
                "There is nothing to tell apart. samples_seen has the number of its samples; mix() makes a mixture."
            )
        here, plan = self.cursor, self._fetcher.plan(self.global_batch_size)
        laps, position = divmod(here.position - plan.padding(0, here.position), sampler.length)
        return sampler.consumed(here.epoch + laps, position)

    def stats(self, epoch: int | None = None) -> LoaderStats:
        """Return how long loops over this loader waited for their batches, and how long they were busy with them.

        They count the time of this process: a state does not have them, and `load_state_dict` and `seek` leave them as
        they are, so that a batch that is delivered twice counts twice.

        Args:
            epoch: of this epoch only; None for all.

        Raises:
            ConfigurationError: it is the number of no epoch.
        """
        if epoch is not None and (isinstance(epoch, bool) or not hasattr(epoch, "__index__") or epoch < 0):
            raise ConfigurationError(
                f"stats() was asked for epoch {epoch!r}, which is none: all its numbers would be 0.\n"
                "Give the number of an epoch, from 0, or nothing for all of them."
            )
        return self.progress.stopwatch.stats(epoch)

    # ------------------------------------------------------------------ the state

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last acknowledged batch: fresh plain values, below 1 kB for indexed sources.

        Save it with the model. After `load_state_dict` in a new process, model and loader continue as if nothing had
        happened. For `torch.distributed.checkpoint`, pass it `loader.dcp()` instead.
        """
        self._refuse_evaluation("state_dict()")
        state = self.progress.bookmark()()
        point("loader.state", self, state)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go to the position at which a state was taken. Valid at any time, also in the middle of a loop.

        Args:
            state_dict: what `state_dict()` returned; not modified. Or what a checkpoint has of `loader.dcp()`, of which
                this rank's state is loaded.
            strict: reject a state with different data, order or configuration. Without, differences are warned about,
                and the loader continues at the saved position.

        Raises:
            StateFormatError: it is not a state, truncated, or of a newer version.
            StateMismatchError: it does not belong to this loader; the message says which field differs, both values,
                and the fix.

        In case of an error nothing was changed.
        """
        self._refuse_evaluation("load_state_dict()")
        with self._options.ranks.found_again():
            if is_leaf(state_dict):
                from resumable._dcp import state_of_rank  # noqa: PLC0415  # only a checkpoint of DCP needs it

                state_dict = state_of_rank(state_dict[LEAF], self._options.find_world())
            self._accepted(state_dict, strict=strict)()

    def dcp(self, process_group: Any = None, *, no_dist: bool = False) -> DCPState:
        """Return what `torch.distributed.checkpoint` (DCP) saves and loads: an object with a state of all ranks.

            dcp.save({"model": model, "loader": loader.dcp()}, checkpoint_id=f"checkpoints/{step}")
            dcp.load({"model": model, "loader": loader.dcp()}, checkpoint_id=newest)

        It compares the ranks in both calls, so all of them must call `dcp.save` and `dcp.load`. Ranks that differ can
        load a checkpoint, and cannot save one: DCP raises the `StateMismatchError` on all of them before a byte is
        written. It has no state besides this Loader and the arguments.

        Args:
            process_group: the ranks that save or load together, as for `dcp.save` and `dcp.load`; None for all. For
                `dcp.async_save`, which uses its group in a thread, pass a different group of the same ranks, or none.
            no_dist: this rank saves or loads alone, as for `dcp.save` and `dcp.load`.

        Raises:
            UnsupportedError: the loader is for evaluation.
            ConfigurationError: `process_group` is not a process group of which this rank is a member.
        """
        self._refuse_evaluation("dcp()")
        from resumable._dcp import DCPState  # noqa: PLC0415  # a part of the import that few need

        return DCPState(self, process_group, no_dist=no_dist)

    def _accepted(self, state_dict: Mapping[str, Any], *, strict: bool) -> Callable[[], None]:
        """Check whether a state can be loaded, and return what does it."""
        point("loader.load", self, state_dict)
        state = parse(state_dict, self._fetcher.can)
        fetcher, options = self._fetcher, self._options
        if brought := brought_along(state, options):
            fetcher, options = self._again(*brought)
        check_same(state.fingerprint, fetcher.fingerprint_for(state), strict=strict, hints=fetcher.can.hints)
        world = fetcher.world()
        global_batch = agree_on_batch(state, options, world.size)
        check_share(global_batch, world, uneven=options.uneven)
        fetcher.plan(global_batch)  # refuses a global batch that is larger than the data
        if strict:
            fetcher.check(state, global_batch)
        check_intact(state)
        self.progress.noted.check(state.data, strict=strict)

        def go_there() -> None:
            if brought:
                self.progress.read_from(fetcher, options)
                self._read_from(fetcher, options)
            mark = fetcher.adopt(state, global_batch)
            self.progress.load(state, mark._replace(strict=strict), global_batch)
            self._resumed, self._gone_through, self._loaded_step = True, 0, self.global_step
            point("loader.loaded", self)

        return go_there

    def _refuse_evaluation(self, call: str, instead: str = "Loop over it by `for batch in loader`.") -> None:
        """Refuse what needs a place, on a loader that has none.

        Raises:
            UnsupportedError: the loader is for evaluation.
        """
        if self.evaluation:
            raise UnsupportedError(
                f"{call} was called on a loader with evaluation=True, each loop over which begins at the beginning.\n"
                f"It has no place to save, to load or to leave. {instead} A loader to train from is wrapped without "
                "evaluation=True."
            )
