"""The Loader, the only object whose state is saved."""

from __future__ import annotations

import operator
import sys
from importlib import import_module
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple

from resumable._fetch import IndexedFetcher
from resumable._introspection import offers
from resumable._order.plan import check_share
from resumable._order.world import World
from resumable._state import LEAF, agree_on_batch, brought_along, check_intact, check_same, is_leaf, parse
from resumable._warn import warn
from resumable.errors import ConfigurationError, LoopWarning, StateMismatchWarning, UnsupportedError
from resumable.failpoints import notice, point
from resumable.loader.iterators import (
    Delivery,
    EpochIterator,
    EvaluationPass,
    Loops,
    StepIterator,
    T_co,
    check_total,
)
from resumable.loader.progress import Progress
from resumable.protocols import SnapshotBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType
    from typing import Protocol, Self

    from resumable._dcp import DCPState
    from resumable._fetch import Fetcher
    from resumable._options import Options
    from resumable._order.cursor import Cursor
    from resumable._state import State
    from resumable._stats import LoaderStats

    class Again(Protocol):
        """Builds fetcher and options of the same source again."""

        def __call__(self, seed: int, name: str, *, evaluation: bool = False) -> tuple[Fetcher, Options]: ...


__all__ = ["Loader"]

_NO_ORDER = (
    "The loader sets the order and tells its sampler the epoch: remove your set_epoch() call. Iterating the sampler "
    "alone would restart from the first sample. For a different order, pass wrap(..., sampler=...)."
)
_NOT_HERE = {
    "dataset": "Iterating the dataset of a stream would restart it without an error, so a Loader shows only datasets "
    "with indexed samples. Keep a reference to yours.",
    "sampler": _NO_ORDER,
    "batch_sampler": _NO_ORDER,
    "set_epoch": "The loader counts the epochs itself: remove the call. Each epoch has a different order, also after a "
    "resume. To go to a different epoch, use seek(epoch=...).",
    "drop_last": "Use wrap(..., tail=...) to set what happens at the end of an epoch; len(loader) counts its batches.",
    "shuffle": "Pass shuffle=True to the DataLoader, or to wrap(..., shuffle=True) for a sequence.",
}
_NOT_SET = {
    "epoch": "Use seek(epoch=...), or load_state_dict().",
    "cursor": "Use seek(epoch=..., step=...), or load_state_dict().",
    "global_step": "It counts the batches that are in the weights. Only load_state_dict() sets it.",
    "seed": "Pass it to wrap; a loaded state sets it too.",
    "name": "Pass it to wrap; a loaded state sets it too.",
    "samples_seen": "It counts the samples that are in the weights. Only load_state_dict() sets it.",
}
_PREPARE = (
    "Accelerate's prepare() got a Loader, which it would return unchanged.\n"
    "Batches would stay on the CPU, gradient accumulation would run across the end of an epoch, and save_state() would "
    "not save the loader's position. Remove it from accelerator.prepare(), and prepare it separately: "
    "loader = resumable.integrations.accelerate.prepare(accelerator, loader)."
)
_TAKEN = (
    "the mixture differs from the checkpoint's, but only in samples that were not read yet, so the run continues with "
    "it: {}.\nAll batches up to here are the same. If this is not intended, pass the sources and weights that the run "
    "was started with."
)
_MAKE_ANOTHER = "Change the source, and wrap it again."
_FIXED = {"dataset", "batch_size", "num_workers", "collate_fn", *_NOT_HERE, *_NOT_SET}


class Accepted(NamedTuple):
    """A state that was checked and can be loaded.

    Args:
        state: the state.
        global_batch: samples per step over all ranks to continue with.
        fetcher: reads the source with the seed and the name of the state.
        options: the options with that seed and name.
        strict: whether the data are compared again when they are read.
    """

    state: State
    global_batch: int
    fetcher: Fetcher
    options: Options
    strict: bool


class Loader(Generic[T_co]):
    """Iterates over batches, and can stop and resume at any of them. `resumable.wrap` returns one.

    Iterating continues after the last delivered batch: the next `for` after a `break`, an exception or a loaded state
    reads the rest of the epoch. After an epoch's last batch, it reads the next epoch. No batch is delivered twice
    unless you go back with `rewind`, `seek` or `load_state_dict`. An epoch that delivered all its batches is over, even
    if the source has elements left that do not fill a batch.

    One loop reads a Loader at a time. The newest one wins, and an older one raises `LoopError` at its next `next()`.

    Anything the source has opened, such as worker processes, stays open between two loops, so the next one continues
    immediately. `close()` ends it, and so does leaving `with wrap(...) as loader:`. The block gets the loader itself,
    and exceptions leave the block unchanged.

    A Loader shows the attributes of a `DataLoader` that most scripts use, and rejects others with advice. It does not
    have `sampler`, `batch_sampler` and `drop_last`, nor the `dataset` of a stream: a framework that finds them takes a
    Loader for a `DataLoader`, and builds a different one over its raw data.

    Args:
        fetcher: gets the batches from a backend.
        options: the options of `wrap`.
        wrapped: the source that was passed to `wrap`, for messages.
        again: builds fetcher and options for it again, with the seed and the name from a state.

    Attributes:
        progress: what is delivered, in flight and acknowledged; for integrations that drive the loader themselves.
        driver: the name of the code that loops over it instead of its iterators, such as `prepare` for Accelerate; or
            empty.
        hint: of the driver: what to use instead of a loop.
        loops: which loops over it are open.
        gone_through: how many epochs of the run a loop over `epochs()` went through in this process.
        loaded: a state set the position, and no loop has said that nothing is left.
        resumed: resumed in epoch 1 or later, and the script has not asked for the epoch since.
    """

    def __init__(self, fetcher: Fetcher, options: Options, wrapped: Any, again: Again) -> None:
        self._again = again
        self._read_from(fetcher, options)
        self.driver = self.hint = ""
        self.loops = Loops()
        self.gone_through = 0
        self.loaded = False
        self.resumed = False
        self._loaded_step = 0  # the global step of the state that was loaded last
        self.progress = Progress(fetcher, options)
        self._wrapped = wrapped  # last, because its attributes cannot be set from now on
        if not self.evaluation:
            notice("loader.wrapped")

    def _read_from(self, fetcher: Fetcher, options: Options) -> None:
        self._fetcher, self._options = fetcher, options
        self._shows = {"batch_size": options.batch_size, **fetcher.inside.shows}

    def __bool__(self) -> bool:
        """A loader is true, even if its length is unknown."""
        return True

    def __reduce__(self) -> str:
        raise UnsupportedError(
            "a Loader cannot be copied or pickled, because it reads a stream of this process.\n"
            "A copy would repeat batches or skip some. Save loader.state_dict() instead; in a different process, wrap "
            "the source again and load that."
        )

    def __repr__(self) -> str:
        kind = self._fetcher.fingerprint()["backend.kind"]
        size = self.global_batch_size if self._options.batch_size else self._shows["batch_size"]
        batches = f", batches of {size}" if size else ""  # elements that are batches may have any size
        return f"<Loader of {kind}{batches}, at {self.cursor}>"

    # ------------------------------------------------------------------ iterating

    def __iter__(self) -> Iterator[T_co]:
        """Return an iterator over the rest of this epoch, or over the next one if nothing is left.

        It reads nothing before its first `next()`, so an iterator that is not used costs nothing and changes nothing.
        With `evaluation=True`, each iterator starts at the first batch of epoch 0. While a loop over `epochs()` is
        open, it reads the rest of the current epoch and never the next one.

        Raises:
            LoopError: at a `next()`. A newer loop was started; a loop over `steps()` is open; or the current epoch of
                the loop over `epochs()` is over.

        Warns:
            LoopWarning: the loader was resumed in epoch 1 or later, and the script did not ask for the epoch.
        """
        return EvaluationPass(self) if self.evaluation else Delivery(self).read()

    def __len__(self) -> int:
        """Count all batches of the epoch, including those already read; the same on every rank, or a TypeError."""
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
            raise TypeError("this source has no length: the number of batches in an epoch is unknown before its end")
        return self.progress.history.total(epoch)

    def epochs(self, total: int) -> EpochIterator[T_co]:
        """Iterate over the epochs up to the number `total`, starting with the loader's current epoch.

            for epoch in loader.epochs(10):
                for batch in epoch:
                    ...
                validate()

        After a resume from a state that was taken inside the inner loop after an epoch's last batch, it first returns
        that epoch with no batch left, so `validate()` runs once and is not skipped. A state taken after the inner loop
        counts the epoch as done. Leaving an epoch with `break` ends it, and its rest is not read. The exception: if
        `load_state_dict`, `seek` or `rewind` set the position just before, the loop continues there.

        It is open until it is exhausted, closed with its `close()`, or dropped, as `break` does. Meanwhile, a loop over
        the Loader itself reads the rest of the current epoch, and raises `LoopError` after that.

        Args:
            total: number of epochs of the whole run, including those before a resume.

        Raises:
            ConfigurationError: an epoch was left, and some of its batches are not acknowledged (`ack="manual"`).
            LoopError: a newer `epochs()` or `steps()` was started.

        Warns:
            LoopWarning: no epoch is left, and an earlier loop in this process went through as many.
        """
        self._refuse_evaluation("epochs()")
        return self.epochs_of(Delivery(self), total)

    def steps(self, total: float) -> StepIterator[T_co]:
        """Iterate over batches, through as many epochs as needed, until `global_step` is `total`.

            for batch in loader.steps(100_000):
                ...

        After a resume or a `break`, it continues with the next batch. With `ack="manual"`, batches in flight count, so
        none is delivered beyond the total. It stays open like `epochs()`; any other loop over the Loader raises
        `LoopError` meanwhile.

        Args:
            total: number of global batches of the whole run, including those before a resume; `math.inf` for no end.

        Raises:
            DataError: an epoch delivers no batch at all, and neither does the next one.
            LoopError: a newer loop was started.

        Warns:
            LoopWarning: no batch is left, and this process delivered them all.
        """
        self._refuse_evaluation("steps()")
        return self.steps_of(Delivery(self), total)

    def for_evaluation(self) -> Loader[T_co]:
        """Return a Loader over the same source to evaluate with, which does not touch the position of this one.

            for epoch in loader.epochs(10):
                for batch in epoch:
                    ...
                accuracy = test(loader.for_evaluation())

        Each loop over it is one full pass over the data, in the order and with the augmentation of epoch 0. It has the
        options of this Loader, with `evaluation=True`. With several ranks, they divide it, and the log says so.

        Raises:
            UnsupportedError: the source cannot be opened a second time while this Loader reads it, because it has its
                own state, or can be read only once.
        """
        if self.evaluation:
            return self
        if reason := self._cannot_open_twice():
            raise UnsupportedError(
                f"for_evaluation() opens the source a second time, but this source {reason}.\n"
                "Evaluating would change what training reads. Create a second source of the same data, and wrap it "
                "with evaluation=True."
            )
        fetcher, options = self._again(self.seed, self.name, evaluation=True)
        return Loader(fetcher, options, self._wrapped, self._again)

    def _cannot_open_twice(self) -> str:
        """Return why a second Loader cannot read the source at the same time; empty if it can."""
        fetcher = self._fetcher
        if fetcher.unit == "sample":
            return "has a state, which both loaders would change" if fetcher.remembers else ""
        if fetcher.traits.goes_on:
            return "continues where it is, so it can be read only once"
        if offers(fetcher.backend, SnapshotBackend) and not fetcher.traits.reopens:
            return "has a state, which both loaders would change"
        sources = (self._wrapped, getattr(self._wrapped, "dataset", None))
        if any(callable(getattr(one, "set_epoch", None)) for one in sources):
            return "has set_epoch(), which would be called with 0 during training"
        return ""

    def epochs_of(self, delivery: Delivery[T_co], total: float) -> EpochIterator[T_co]:
        """Return what `epochs` returns, with the batches of a delivery; for integrations."""
        last, self.resumed = check_total("epochs", total), False
        return EpochIterator(delivery, last)

    def steps_of(self, delivery: Delivery[T_co], total: float) -> StepIterator[T_co]:
        """Return what `steps` returns, with the batches of a delivery; for integrations."""
        last, self.resumed = check_total("steps", total), False
        if (done := self.progress.steps_delivered) >= last > self._loaded_step:
            warn(
                f"steps({last}) has no batch left, because this process has delivered {done} already.\n"
                "The loop's body does not run. The number counts the steps of the whole run, over all epochs: remove "
                "the loop around it, or pass a larger number to continue.",
                LoopWarning,
            )
        return StepIterator(delivery, last)

    def warn_of_counting(self) -> None:
        """Warn, once after a resume in epoch 1 or later, if the script did not ask for the epoch.

        Warns:
            LoopWarning: it did not, so a loop over `range(epochs)` would train epochs again.
        """
        if self.resumed:
            self.resumed = False
            warn(
                f"a loop over a resumed Loader starts in epoch {self._next_epoch}, but this loop did not use "
                "`loader.epochs()` or `loader.epoch`.\n"
                "If it is inside a loop over range(epochs), that loop starts at 0 and trains the epochs before the "
                "resume again. Use `for epoch in loader.epochs(total):` with `for batch in epoch:`, or "
                "range(loader.epoch, total), or loader.steps(total).",
                LoopWarning,
            )

    def rewind(self) -> None:
        """Go back to the first batch that is not known to be in the weights, for example after an exception.

        With `ack="manual"`, the next batch is the one after the last acknowledged batch. With "auto", it is the batch
        that was delivered last. Calling it twice changes nothing. It may go back into the previous epoch. It changes
        nothing if no batch is in flight ("manual"), or none was delivered since the position was set ("auto").

            try:
                train(batch)
            except torch.OutOfMemoryError:
                loader.rewind()

        Raises:
            UnsupportedError: the source cannot go back; the loader is for evaluation; or an integration drives it.
        """
        self._refuse_evaluation("rewind()", "Each loop over it starts over anyway.")
        if self.driver:
            raise UnsupportedError(
                f"rewind() was called on a Loader that {self.driver} reads.\n"
                "It would deliver batches again that the integration has counted. After an error the integration "
                "rewinds on its own; or load a checkpoint."
            )
        self.progress.rewind()

    def drive(self, by: str, hint: str = "") -> None:
        """Let an integration deliver the batches, and count them with `ack()`: loops over the Loader raise `LoopError`.

        Args:
            by: the name of the integration, for messages.
            hint: what to use instead of a loop, for the message of the `LoopError`.

        Raises:
            ConfigurationError: a different one drives the loader already.
            UnsupportedError: batches are in flight, and the source cannot go back to the position before them.
        """
        if self.driver:
            raise ConfigurationError(
                "the same Loader was passed to two training runs.\n"
                f"  first:  {self.driver}\n  second: {by}\n"
                "Each batch would reach only one of them, but count for both. Wrap the source again for the second one."
            )
        if self.ack_mode == "manual":
            self.progress.rewind()
        self.progress.set_ack("manual")
        self.driver, self.hint, self.loops = by, hint, Loops()  # a loop that is open raises at its next batch

    def give_back(self) -> None:
        """End `drive`: loops over the Loader continue after the last acknowledged batch."""
        self.progress.rewind(leaves=True)
        self.progress.set_ack(self._options.ack)
        self.driver, self.hint, self.resumed = "", "", False

    # ------------------------------------------------------------------ the position

    @property
    def global_step(self) -> int:
        """Number of global batches in the weights, over all epochs. Use it to number checkpoints.

        It only grows, even if the batch size, the number of ranks or the length of an epoch changes, an epoch is left
        early, or `seek` goes back. `load_state_dict` sets it to the state's number.
        """
        return self.progress.counted[0]

    @property
    def samples_seen(self) -> int:
        """Samples in the weights, over all epochs and ranks, counted like `global_step`. For a stream, elements."""
        return self.progress.counted[1]

    @property
    def cursor(self) -> Cursor:
        """The position after the last batch that was delivered."""
        return self.progress.delivered

    @property
    def acknowledged(self) -> Cursor:
        """The position in a state taken now: the cursor, or with `ack="manual"` the last batch confirmed by `ack()`.

        While an exception raised after the last delivery is being handled, the last batch is not counted.
        """
        return self.progress.acknowledged

    @property
    def ack_mode(self) -> Literal["auto", "manual"]:
        """Who acknowledges: the loader itself, or `ack()`."""
        return self.progress.ack_mode

    @property
    def global_batch_size(self) -> int:
        """Samples per step over all ranks, `G`."""
        return self.progress.global_batch

    @property
    def accumulation(self) -> int | None:
        """How many steps add up to one of the run's first global batches, after a resize with `on_change="keep_local"`.

        Accumulate gradients over this many steps to keep the optimizer's steps the same. 1 if the global batch has not
        changed; None if no integer number of steps adds up to one.
        """
        first, now = self.progress.first_global_batch, self.global_batch_size
        return None if first % now else first // now

    @property
    def seed(self) -> int:
        """The seed of order and randomness: passed to `wrap`, detected, or from a loaded state."""
        return self._options.seed or 0

    @property
    def name(self) -> str:
        """Distinguishes this stream from others with the same seed; may be empty."""
        return self._options.name or ""

    @property
    def shuffles(self) -> bool:
        """Whether the order depends on `seed` and `name`."""
        return self._fetcher.unit == "sample" and "sampler.seed" in self._fetcher.fingerprint()

    @property
    def evaluation(self) -> bool:
        """Whether each loop starts at the first batch of epoch 0 (`wrap(..., evaluation=True)`)."""
        return self._options.evaluation

    @property
    def epoch(self) -> int:
        """The epoch that a new `for batch in loader` reads: the next one if this one has no batch left."""
        self.resumed = False
        return self._next_epoch

    @property
    def _next_epoch(self) -> int:
        return self.progress.delivered.epoch if self.evaluation else self.progress.following.epoch

    def peek(self) -> T_co:
        """Return the batch that the next `next()` will return (the same object), without advancing.

        The state stays the same. After the last batch of an epoch, it returns the first batch of the next one. Like
        reading a batch, it detects the number of ranks.

        Raises:
            UnsupportedError: the loader is for evaluation.
            DataError: the source does not yield any batch.
        """
        self._refuse_evaluation("peek()", "next(iter(loader)) has no side effect there.")
        batch: T_co = self.progress.peek()
        return batch

    def ack(self, batches: int = 1) -> None:
        """Confirm that the oldest delivered batches are in the weights (`ack="manual"`).

        Args:
            batches: how many.

        Raises:
            ConfigurationError: the loader acknowledges on its own, or fewer batches are waiting.
        """
        try:
            count = operator.index(batches)
        except TypeError:
            raise ConfigurationError(
                f"ack() expects the number of batches that were trained on, but got a {type(batches).__name__}.\n"
                "No batch was acknowledged. Call ack() after each optimizer step, or ack(2) for two batches."
            ) from None
        self.progress.acknowledge(count)
        point("loader.acked", self)

    def seek(self, *, epoch: int, step: int = 0) -> None:
        """Go to any batch: the next one delivered is number `step` of `epoch`. O(1) if samples are indexed.

        Args:
            epoch: from 0.
            step: from 0 to the number of batches in the epoch. A step before a change of the global batch is the one
                that the run had; the batches from there on have the current size.

        Raises:
            ConfigurationError: there is no such batch.
            UnsupportedError: the source resumes from its own snapshots, which exist only for positions it has read; or
                the state does not say where a past step was.
        """
        self._refuse_evaluation("seek()")
        epoch, step = operator.index(epoch), operator.index(step)
        if epoch < 0 or step < 0:
            raise ConfigurationError(f"epoch={epoch}, step={step} is not a position: both count from 0.")
        if self.progress.source_state() is not None:
            raise UnsupportedError(
                "seek() needs a source that can start at any position or from scratch, but this one resumes from its "
                "own snapshots.\nThat batch has no snapshot. Load a state that was taken there."
            )
        at, _ = self.progress.history.locate(epoch, step)
        self.resumed, self.loaded, self.gone_through = False, False, 0
        self.progress.go_to(at)

    def end_epoch(self) -> None:
        """Count the epoch as done, even if batches are left: the next batch is the first of the next epoch.

        In a loop over `epochs()`, it changes nothing if the current epoch has ended already.

        Raises:
            ConfigurationError: delivered batches are waiting to be acknowledged.
        """
        self._refuse_evaluation("end_epoch()")
        current = self.loops.epoch
        if current is None or self.progress.acknowledged.epoch <= current:
            self.progress.end_epoch()
        point("loader.epoch_end", self)

    def sample_indices(self, *, epoch: int, step: int, rank: int | None = None) -> list[int]:
        """Return the indices of the samples in a batch, in order, without reading any.

        Args:
            epoch: from 0.
            step: number of the batch in the epoch, from 0. A step before a change of the global batch has the samples
                that it had.
            rank: return only this rank's part of the batch, with the current number of ranks; None for the whole global
                batch.

        Raises:
            ConfigurationError: there is no such batch or rank.
            UnsupportedError: the source has no sample indices, or the state does not say where a past step was.
        """
        if not isinstance(self._fetcher, IndexedFetcher):
            raise UnsupportedError("this source has no sample indices: it yields elements in its own order.")
        if epoch < 0:
            raise ConfigurationError(f"epoch={epoch} does not exist: epochs count from 0.")
        cursor, plan = self.progress.history.locate(epoch, step)
        if plan.finished(cursor):
            raise ConfigurationError(
                f"epoch {epoch} has {step} batches, so step {step} does not exist: they count from 0."
            )
        world = World() if rank is None else World(rank, self._fetcher.world().size)
        return self._fetcher.sample_indices(cursor, plan, world)

    def consumed(self) -> dict[str, int]:
        """Return how many samples of each source of a mixture precede the position, over all epochs and ranks.

        It is computed from the position, so it is correct after a resume, with any number of ranks. Samples at the end
        of an epoch that `tail="drop"` leaves out count as consumed once the next epoch has started. Samples that only
        fill up a batch do not count.

        Raises:
            UnsupportedError: the source is not a mixture.
        """
        from resumable.samplers import Mixture  # noqa: PLC0415  # a part of the import that few need

        sampler = getattr(self._fetcher, "sampler", None)
        if not isinstance(self._fetcher, IndexedFetcher) or not isinstance(sampler, Mixture):
            raise UnsupportedError(
                "consumed() counts the samples of each source of a mixture, but this loader reads a single source.\n"
                "Use samples_seen for the number of its samples. mix() makes a mixture."
            )
        here, plan = self.cursor, self._fetcher.plan(self.global_batch_size)
        laps, position = divmod(here.position - plan.padding(0, here.position), sampler.length)
        return sampler.consumed(here.epoch + laps, position)

    def stats(self, epoch: int | None = None) -> LoaderStats:
        """Return how long loops over this loader waited for batches, and how long they were busy with them.

        The times are from this process only: they are not part of a state, and `load_state_dict` and `seek` do not
        reset them, so a batch that is delivered twice counts twice.

        Args:
            epoch: only this epoch; None for all.

        Raises:
            ConfigurationError: `epoch` is not the number of an epoch.
        """
        if epoch is not None and (isinstance(epoch, bool) or not hasattr(epoch, "__index__") or epoch < 0):
            raise ConfigurationError(
                f"stats() was called with epoch={epoch!r}, which is not an epoch, so all numbers would be 0.\n"
                "Pass the number of an epoch, counted from 0, or nothing for all epochs."
            )
        return self.progress.stopwatch.stats(epoch)

    # ------------------------------------------------------------------ the state

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last acknowledged batch: fresh plain values, below 1 kB for indexed sources.

        Save it with the model. After `load_state_dict` in a new process, model and loader continue as if nothing had
        happened. For `torch.distributed.checkpoint`, pass it `loader.dcp()` instead.
        """
        self._refuse_evaluation("state_dict()")
        state = self.progress.state_dict()
        point("loader.state", self, state)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go to the position where a state was taken. Can be called at any time, even inside a loop.

        Args:
            state_dict: what `state_dict()` returned; it is not modified. Or the entry of a checkpoint that was saved
                from `loader.dcp()`, from which this rank's state is loaded.
            strict: reject a state with different data, order or configuration. With False, differences are only warned
                about, and the loader continues at the saved position.

        Raises:
            StateFormatError: it is not a state, is truncated, or has a newer version.
            StateMismatchError: it does not belong to this loader; the message says which field differs, both values,
                and the fix.

        If it raises, nothing has changed.
        """
        self._refuse_evaluation("load_state_dict()")
        with self._options.ranks.found_again():
            if is_leaf(state_dict):
                from resumable._dcp import state_of_rank  # noqa: PLC0415  # only needed for DCP checkpoints

                state_dict = state_of_rank(state_dict[LEAF], self._options.find_world())
            self._go_to(self._accepted(state_dict, strict=strict))

    def dcp(self, process_group: Any = None, *, no_dist: bool = False) -> DCPState:
        """Return an object that `torch.distributed.checkpoint` (DCP) saves and loads, with the states of all ranks.

            dcp.save({"model": model, "loader": loader.dcp()}, checkpoint_id=f"checkpoints/{step}")
            dcp.load({"model": model, "loader": loader.dcp()}, checkpoint_id=newest)

        It compares the ranks in both calls, so all of them must call `dcp.save` and `dcp.load`. Ranks that differ can
        load a checkpoint but not save one: DCP raises the `StateMismatchError` on all of them before it writes a byte.
        The object holds only this Loader and the arguments.

        Args:
            process_group: the ranks that save or load together, as in `dcp.save` and `dcp.load`; None for all. For
                `dcp.async_save`, which uses its group in a thread, pass a different group of the same ranks, or none.
            no_dist: this rank saves or loads alone, as in `dcp.save` and `dcp.load`.

        Raises:
            UnsupportedError: the loader is for evaluation.
            ConfigurationError: `process_group` is not a process group of which this rank is a member.
        """
        self._refuse_evaluation("dcp()")
        from resumable._dcp import DCPState  # noqa: PLC0415  # a part of the import that few need

        return DCPState(self, process_group, no_dist=no_dist)

    def _accepted(self, state_dict: Mapping[str, Any], *, strict: bool) -> Accepted:
        """Check a state, and return what `_go_to` takes. Changes nothing.

        The order of the checks decides which error is raised if several things differ: first the format, then data and
        options, sizes, position, damage, and last the samples, because comparing them means reading them.
        """
        point("loader.load", self, state_dict)
        state = parse(state_dict, self._fetcher.backend)
        fetcher, options = self._fetcher, self._options
        if brought := brought_along(state, options):
            fetcher, options = self._again(*brought)
        check_same(state.fingerprint, fetcher.fingerprint_for(state), strict=strict, hints=fetcher.traits.hints)
        world = fetcher.world()
        global_batch = agree_on_batch(state, options, world.size)
        check_share(global_batch, world)
        plan = fetcher.plan(global_batch)  # rejects a global batch that is larger than the data
        if strict:
            fetcher.check(state, plan)
        check_intact(state)
        noted, continuation = self.progress.noted, fetcher.continuation(state)
        noted = noted if continuation is None else noted.before(continuation.sizes, continuation.firsts)
        noted.check(state.data, strict=strict)
        return Accepted(state, global_batch, fetcher, options, strict)

    def _go_to(self, accepted: Accepted) -> None:
        """Go to the position of an accepted state."""
        state, global_batch, fetcher, options, strict = accepted
        if fetcher is not self._fetcher:  # the state brought a seed or a name
            self.progress.read_from(fetcher, options)
            self._read_from(fetcher, options)
        if continuation := fetcher.continuation(state):
            warn(_TAKEN.format(continuation.told), StateMismatchWarning)
        mark = fetcher.adopt(state, global_batch)
        self.progress.load(state, mark._replace(strict=strict), global_batch)
        self.resumed, self.loaded, self.gone_through = self._next_epoch > 0, True, 0
        self._loaded_step = self.progress.steps_delivered
        point("loader.loaded", self)

    def _refuse_evaluation(self, call: str, instead: str = "Use `for batch in loader`.") -> None:
        """Reject calls that need a position, on a loader that has none.

        Raises:
            UnsupportedError: the loader is for evaluation.
        """
        if self.evaluation:
            raise UnsupportedError(
                f"{call} was called on a loader with evaluation=True, which starts every loop at the first batch.\n"
                f"It has no position to save, load or leave. {instead} To train, wrap the source without "
                "evaluation=True."
            )

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """End the worker processes, threads and open files of the stream, and wait for them. The position stays.

        A state taken afterwards is the same as before. Iterating again reopens the stream at the position, as in a
        resumed run, so a closed loader can still be used, unless its source can be read only once. Workers that stay
        alive between epochs (`persistent_workers=True`) end as well. Calling it again does nothing. In a process forked
        from the one that reads, it does nothing: the stream belongs to the parent.

        Raises:
            UnsupportedError: another thread, or the code that calls this, is reading a batch.
        """
        self.progress.close()

    def __enter__(self) -> Self:
        """Return the loader."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close the loader; an error while closing becomes a note of the exception that leaves the block."""
        try:
            self.close()
        except Exception as later:
            if error is None:
                raise
            error.add_note(f"resumable: closing the loader also failed: {type(later).__name__}: {later}")

    # ------------------------------------------------------------------ attributes of the source

    @property
    def dataset(self) -> Any:
        """The dataset of a `DataLoader`, or the sequence, unchanged; only if samples have an index."""
        return self._show("dataset")

    @property
    def batch_size(self) -> int | None:
        """Samples per rank and step, as requested; None if the elements are the batches."""
        size: int | None = self._show("batch_size")
        return size

    @property
    def num_workers(self) -> int:
        """Worker processes of the `DataLoader`."""
        number: int = self._show("num_workers")
        return number

    @property
    def collate_fn(self) -> Callable[[list[Any]], Any]:
        """The function of the `DataLoader` that makes a batch from samples."""
        function: Callable[[list[Any]], Any] = self._show("collate_fn")
        return function

    def _show(self, name: str) -> Any:
        try:
            return self._shows[name]
        except KeyError:
            raise AttributeError(name) from None  # __getattr__ turns it into a message

    if not TYPE_CHECKING:  # to type checkers, a Loader has no other attributes

        @property
        def __class__(self) -> type:
            """The same class as `type()` returns.

            Raises:
                UnsupportedError: Accelerate's `prepare` asks for it, to decide what to prepare.
            """
            if "accelerate.accelerator" in sys.modules:
                private = import_module("resumable.integrations.accelerate.private")
                if private.is_preparing(depth=2):
                    raise UnsupportedError(_PREPARE)
            return type(self)

        def __getattr__(self, name: str) -> Any:
            """Reject an attribute that a Loader does not have.

            Raises:
                AttributeError: always; the message says if the wrapped source has it.
                UnsupportedError: Accelerate's `prepare_data_loader` asks whether the loader was prepared.
            """
            if name == "_is_accelerate_prepared":
                raise UnsupportedError(_PREPARE)
            text = f"'Loader' object has no attribute {name!r}"
            if not name.startswith("_"):
                text += self._advice(name)
            raise AttributeError(text, name=name, obj=self)

        def __setattr__(self, name: str, value: Any) -> None:
            """Reject setting an attribute that would have no effect.

            Raises:
                AttributeError: the attribute is fixed, or belongs to the wrapped source.
            """
            own = name in vars(type(self)) or name in vars(self) or name.startswith("_")
            if name in _FIXED or (not own and self._has(name)):
                raise AttributeError(
                    f"cannot set {name} of a Loader to {value!r}.\n"
                    f"The batches would not change. {_NOT_SET.get(name, _MAKE_ANOTHER)}",
                    name=name,
                    obj=self,
                )
            super().__setattr__(name, value)

    def _advice(self, name: str) -> str:
        if name in _NOT_HERE:
            return f".\n{_NOT_HERE[name]}"
        if not self._has(name):
            return ""
        return (
            f".\nThe wrapped {type(self._wrapped).__qualname__} has one, but the Loader does not show it, because "
            "reading or setting it there would ignore the loader's position. Keep a reference to the source, and use "
            "its attribute."
        )

    def _has(self, name: str) -> bool:
        """Return whether the wrapped source has an attribute, without running its code."""
        missing = object()
        return getattr_static(vars(self).get("_wrapped"), name, missing) is not missing
