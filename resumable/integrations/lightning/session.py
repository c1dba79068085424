"""One call of `Trainer.fit`: tracks which batches are in the weights, and moves a resumed run to that position."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from resumable import rng
from resumable._content import digest_of
from resumable._ranks.store import is_initialized
from resumable.errors import UnsupportedError
from resumable.integrations._buffers import Buffers
from resumable.integrations._saved import gather
from resumable.integrations.lightning import private
from resumable.integrations.lightning.evaluating import EvaluationStreams
from resumable.integrations.lightning.lightning_state import (
    UNSTARTED,
    LightningState,
    LoaderCall,
    RankNotes,
    TrainerPosition,
    write_counters,
)
from resumable.integrations.lightning.loaders import TrainLoaders, divide_as_strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from resumable.integrations._buffers import KeptBuffers
    from resumable.integrations.lightning.loaders import TrainStream
    from resumable.loader.loader import Loader

__all__ = ["Session"]


class Session:
    """The callback's knowledge of one call of `fit`.

    Args:
        trainer: the Trainer.
        wrap: whether to wrap train loaders that are not Loaders, or the options for `resumable.wrap`.
        strict: raise an error if the checkpoint does not fit this run.
    """

    _exchanges: ClassVar[int] = 0  # of this process; every rank counts the same

    def __init__(self, trainer: Any, wrap: bool | Mapping[str, Any], *, strict: bool) -> None:
        private.check_names(trainer)
        self._trainer, self._strict = trainer, strict
        self._evaluated = EvaluationStreams(
            self._is_trained_on,
            lambda loader: divide_as_strategy(loader, trainer),
            overfit=trainer.overfit_batches > 0,
        )
        self._loaders = TrainLoaders(trainer, wrap, self._note_fetch, self._go_to_checkpoint, self._evaluated.has)
        self._held: list[Iterable[int]] = []  # batches that were trained on, but are not in the weights yet
        self._seen = 0  # batches that were trained on
        self._busy = False  # a batch or a validation is in progress, so RNG states and buffers have changed
        self._following = False
        self._alone = False  # the other ranks must not be asked
        self._boundary: Boundary | None = None
        self._origin: LightningState | None = None  # the checkpoint to resume from
        self._steps, self._counters = 0, dict[str, Any]()  # of that checkpoint
        self._loaded_late = False
        self._placed = False
        self._known: list[Mapping[str, Any]] = []  # what each rank reported last
        self._buffers: Buffers | None = None
        self._train, self._validation = LoaderCalls(trainer, "train"), LoaderCalls(trainer, "validation")
        private.swap_sources(trainer, self._make_train_loaders, self._make_validation_loaders)
        private.call_after_interruption(trainer, self.finish)

    def _make_train_loaders(self, make: Callable[[], Any]) -> Any:
        self._busy = True  # the user's code may consume random numbers
        if self._placed and self._origin is not None:  # a reload was due at the saved position
            self._origin.restore_generators(self._trainer.global_rank)
            self._origin = None
        return self._loaders.make(self._train(make))

    def _make_validation_loaders(self, make: Callable[[], Any]) -> Any:
        self._busy = True
        return self._evaluated(self._validation(make))

    def _calls(self) -> dict[str, LoaderCall]:
        both = {"train": self._train.last, "validation": self._validation.last}
        return {loop: call for loop, call in both.items() if call is not None}

    def _is_trained_on(self, loader: Loader) -> bool:
        return self._loaders.has(loader)

    # ------------------------------------------------------------------ loading

    def load(self, values: Mapping[str, Any] | None, checkpoint: dict[str, Any]) -> None:
        """Read the callback's part of a checkpoint. The run resumes from it when training starts.

        Raises:
            StateError: the part is damaged or missing.
        """
        loop = checkpoint["loops"][private.FIT_LOOP]
        loop["state_dict"].pop("combined_loader", None)  # Lightning would load it too, and not in all cases
        if values is not None and values.get("unstarted"):
            return
        if values is None:
            every = self._trainer.reload_dataloaders_every_n_epochs
            self._origin = LightningState.from_counters(loop, strict=self._strict, every=every)
        else:
            self._origin = LightningState.from_dict(values)
        write_counters(checkpoint, self._origin.position)
        self._steps = checkpoint["global_step"]
        self._counters = deepcopy({name: counter for name, counter in loop.items() if name != "state_dict"})
        calls = self._origin.calls(self._trainer.global_rank)
        if calls:
            self._validation.resume(calls.get("validation"))
            if self._train.resume(calls.get("train")):
                private.forget_loaders(self._trainer, "train")
                return
        if self._loaders.streams:  # the Trainer made them before it read the checkpoint
            self._loaded_late = self._go_to_checkpoint(self._loaders.streams)

    def _go_to_checkpoint(self, streams: list[TrainStream]) -> bool:
        if self._origin is None or self._placed:
            return False
        trainer = self._trainer
        self._origin.restore_loaders(streams, trainer.global_rank, trainer.world_size, strict=self._strict)
        return True

    @property
    def streams(self) -> list[TrainStream]:
        """The train loaders."""
        return self._loaders.streams

    def _note_fetch(self) -> None:
        self._busy = True

    # ------------------------------------------------------------------ training

    def start(self) -> None:
        """Start training: from scratch, or from the checkpoint's position."""
        trainer, saved = self._trainer, self._origin
        _check_ranks(trainer.world_size)
        self._seen = private.counters(trainer)[1].total.processed
        self._train.start()
        self._validation.start()
        if self._loaded_late:
            private.restart_fetching(trainer)
        if saved is None:
            self._place_at_epoch(private.counters(trainer)[0].current.processed)
            self._tell_ranks()
            return
        saved.restore_generators(trainer.global_rank)
        saved.warn(trainer.global_rank)
        private.restore_metrics(trainer, saved.metrics)
        self._set_boundary(saved.position)
        self._tell_ranks()
        if saved.position.stage == "epoch":
            self._placed = True  # loaders that are reloaded in this epoch are used as they are made
            private.begin_epoch_again(trainer)
            if saved.position.schedulers_due:
                private.finish_epoch(trainer)
            self._place_at_epoch(saved.position.epoch)
        else:
            private.restore_consumed(trainer, self._loaders.consumed())
            private.call_at_entry(trainer, self._enter)

    def _enter(self) -> None:
        """Continue in the middle of the checkpoint's epoch."""
        assert self._origin is not None
        saved, self._origin, trainer = self._origin, None, self._trainer
        position = saved.position
        saved.restore_generators(trainer.global_rank)
        if private.has_callback(trainer, "GradientAccumulationScheduler"):
            trainer.accumulate_grad_batches = saved.accumulates
        self._set_boundary(position)
        private.finish_batch(
            trainer,
            is_last=position.is_last,
            pending=position.stage in {"batch", "validated"},
            validated=position.stage == "validated",
        )

    def begin_epoch(self) -> None:
        """Track a new epoch."""
        trainer, saved = self._trainer, self._origin
        self._origin = None
        if saved is not None:
            saved.restore_generators(trainer.global_rank)
        self._loaders.begin_epoch()
        self._place_at_epoch(private.counters(trainer)[0].current.processed)
        self._tell_ranks()

    def follow(self) -> None:
        """Find out which batches were trained on since the last call, and acknowledge those in the weights."""
        progress = private.counters(self._trainer)[1]
        processed = progress.total.processed
        if self._following or processed == self._seen or self._boundary is None:
            return
        self._following = True
        try:
            self._check_one_batch_per_step()
            self._held += [self._loaders.fetched.take() for _ in range(processed - self._seen)]
            self._seen = processed
            if self._is_stepped():
                self._settle()
        finally:
            self._following = False

    def _check_one_batch_per_step(self) -> None:
        taken = len(self._loaders.fetched)
        if private.gives_iterator(self._trainer) and taken > 1:
            raise UnsupportedError(
                f"training_step took {taken} batches from dataloader_iter in one step.\n"
                "It is unknown which of them are in the weights, so a resumed run would skip or repeat some. Take one "
                "batch per step, or use the signature training_step(batch, batch_idx)."
            )

    def _is_stepped(self) -> bool:
        trainer = self._trainer
        if trainer.lightning_module.automatic_optimization:
            return not private.is_accumulating(trainer)
        return self._boundary is None or trainer.global_step != self._boundary.steps

    def _settle(self) -> None:
        """Acknowledge all batches that were trained on: they are in the weights now."""
        self._loaders.ack(self._held)
        self._held.clear()
        epochs, batches = private.counters(self._trainer)
        last = bool(batches.is_last_batch)
        at = epochs.current.ready - 1, batches.current.processed
        self._set_boundary(TrainerPosition("batch", *at, self._seen, is_last=last))

    def note_validation(self) -> None:
        """Note that a validation starts, which may use random numbers."""
        self._busy = True

    def end_validation(self) -> None:
        """Note that a validation has ended."""
        boundary = self._boundary
        if boundary is not None and boundary.position.stage == "batch" and not self._held:
            position = replace(boundary.position, stage="validated")
            self._boundary = boundary._replace(position=position, generators=rng.capture(), calls=self._calls())
            self._busy = False

    def end_epoch(self) -> None:
        """Move the loaders to their next epoch, unless the run ends in the middle of this one."""
        self.follow()
        due = private.is_over(self._trainer)
        if self._boundary is None or not (due or not private.is_ending(self._trainer)):
            return
        if self._held:
            self._settle()
        self._loaders.end_epoch()
        self._tell_ranks()  # before the position changes: it may only be in an epoch that all ranks know
        self._place_at_epoch(private.counters(self._trainer)[0].current.processed, schedulers_due=due)

    def _place_at_epoch(self, epoch: int, *, schedulers_due: bool = False) -> None:
        self._set_boundary(TrainerPosition("epoch", epoch, 0, self._seen, schedulers_due=schedulers_due))

    def _set_boundary(self, position: TrainerPosition) -> None:
        trainer = self._trainer
        self._boundary = Boundary(
            position,
            trainer.global_step,
            private.steps_logged(trainer),
            self._loaders.bookmarks(),
            self._find_buffers(again=position.stage == "epoch").keep(),
            private.callback_states(trainer) if self._may_hold() else {},
            rng.capture(),
            self._calls(),
        )
        self._busy = False

    def _find_buffers(self, *, again: bool) -> Buffers:
        if self._buffers is None:
            self._buffers = Buffers(self._trainer.lightning_module)
        elif again:
            self._buffers.find()
        return self._buffers

    def _may_hold(self) -> bool:
        """Return whether a batch may be over without being in the weights."""
        return self._trainer.accumulate_grad_batches > 1 or not self._trainer.lightning_module.automatic_optimization

    def finish(self) -> None:
        """Return the loaders to the user."""
        self._loaders.give_back()
        self._evaluated.give_back()
        private.give_sources_back(self._trainer)

    # ------------------------------------------------------------------ saving

    def save_alone(self, save: Callable[[], None]) -> None:
        """Save in a signal handler. The other ranks may be anywhere in their code, so they are not asked."""
        self._alone = True
        try:
            save()
        finally:
            self._alone = False

    def save(self, checkpoint: dict[str, Any]) -> dict[str, Any] | None:
        """Return the callback's part of a checkpoint, and make the other parts match the position of the weights.

        Args:
            checkpoint: the Trainer's checkpoint. Its counters and buffers are set back to that position.

        Returns:
            Plain values; None before training has started.
        """
        self.follow()
        boundary, trainer = self._boundary, self._trainer
        self._loaders.leave_states(checkpoint["loops"][private.FIT_LOOP]["state_dict"])
        if boundary is None:
            return self._save_unchanged(checkpoint)
        alone = self._alone or private.is_interrupted(trainer)
        in_flight = self._busy or private.is_interrupted(trainer) or private.is_beginning(trainer)
        position = self._position_now(boundary)
        generators = boundary.generators() if in_flight else rng.state_dict()
        own, rank = _of_rank(boundary.loaders, generators, boundary.calls), trainer.global_rank
        if alone:
            self._known = RankNotes(self._exchanges).gather(self._known, own, rank, str(position))
        else:
            self._exchange(own)
        if in_flight:
            boundary.buffers.put_into(checkpoint["state_dict"])
        if self._held:
            checkpoint["callbacks"].update(boundary.callbacks)
        torn = trainer.global_step != boundary.steps
        write_counters(checkpoint, position, as_saved=True)
        metrics = private.metrics(trainer)
        partial = private.partial_metrics(trainer) if position.batch else []
        accumulates = trainer.accumulate_grad_batches
        return LightningState(position, torn, self._known, metrics, partial, accumulates).as_dict()

    def _save_unchanged(self, checkpoint: dict[str, Any]) -> dict[str, Any] | None:
        """Save the loaded checkpoint again if the run fails before it trains, or note that training has not started."""
        if self._origin is None:
            return dict(UNSTARTED)
        if not self._origin.ranks or private.is_restoring(self._trainer):
            return None
        checkpoint["global_step"] = self._steps  # the Trainer's is different while its loaders are made
        checkpoint["loops"][private.FIT_LOOP].update(deepcopy(self._counters))
        write_counters(checkpoint, self._origin.position, as_saved=True)
        return self._origin.as_dict()

    def _tell_ranks(self) -> None:
        """Exchange the positions of the loaders. All ranks must call it."""
        self._exchange(_of_rank(self._loaders.bookmarks(), rng.state_dict(), self._calls()))

    def _exchange(self, own: Mapping[str, Any]) -> None:
        self._known = gather(own, self._trainer.world_size)
        Session._exchanges += 1

    def _position_now(self, boundary: Boundary) -> TrainerPosition:
        position = boundary.position
        if position.stage in {"batch", "validated"} and private.steps_logged(self._trainer) > boundary.logged:
            return replace(position, stage="ready")
        if position.schedulers_due and not private.at_epoch_end(self._trainer):
            return replace(position, schedulers_due=False)
        return position


def _of_rank(
    loaders: Sequence[Callable[[], dict[str, Any]]], generators: Mapping[str, Any], calls: Mapping[str, LoaderCall]
) -> dict[str, Any]:
    """Return what only this rank knows about a position."""
    states = [make() for make in loaders]
    return {"loaders": states, "generators": dict(generators), "exact": True, "asked": dict(calls)}


def _check_ranks(world_size: int) -> None:
    """Check that several ranks can exchange their states.

    Raises:
        UnsupportedError: they have no process group of `torch.distributed`.
    """
    if world_size > 1 and not is_initialized():
        raise UnsupportedError(
            f"the Trainer has {world_size} ranks, but torch.distributed has no process group.\n"
            "The states of the other ranks could not be saved. Use a strategy that is based on torch.distributed, such "
            'as strategy="ddp".'
        )


class Boundary(NamedTuple):
    """A point between two optimizer steps. A signal handler may save at any time, so one assignment replaces it.

    Attributes:
        position: of the Trainer.
        steps: optimizer steps in the weights (`trainer.global_step`).
        logged: optimizer steps after which everything was done, including validation.
        loaders: create the states of the train loaders.
        buffers: of the module.
        callbacks: states of the other callbacks. Empty unless gradients are accumulated: only then can batches be
            trained on again.
        generators: creates the states of this rank's global RNGs.
        calls: the calls that made the loaders in use.
    """

    position: TrainerPosition
    steps: int
    logged: int
    loaders: Sequence[Callable[[], dict[str, Any]]]
    buffers: KeptBuffers
    callbacks: Mapping[str, Any]
    generators: Callable[[], dict[str, Any]]
    calls: Mapping[str, LoaderCall]


class LoaderCalls:
    """Calls the user's code that makes the loaders of a loop, and notes when, so a resumed run makes the same ones.

    `train_dataloader()` and `val_dataloader()` may read `current_epoch` for a curriculum, or choose a part of the data
    at random. The Trainer calls them when a run starts, at every `reload_dataloaders_every_n_epochs`, and when a run is
    resumed, possibly in a later epoch.

    Args:
        trainer: the Trainer.
        loop: the loop.
    """

    def __init__(self, trainer: Any, loop: private.Loop) -> None:
        self._trainer, self._loop = trainer, loop
        self._resumed = self._training = False
        self._again: LoaderCall | None = None  # the saved call, which is repeated
        self.last: LoaderCall | None = None  # made the loaders in use

    def __call__(self, make: Callable[[], Any]) -> Any:
        """Return the loaders that the user's code makes."""
        again, trainer = self._again, self._trainer
        if again is not None and not (self._training and private.is_reload_due(trainer, again.reloaded_at)):
            made = self._make_as(again, make)
            self.last = again
            private.note_reload(trainer, self._loop, again.reloaded_at)
            return made
        epoch, step, before = trainer.current_epoch, trainer.global_step, rng.capture()
        made = make()
        unchanged = digest_of(before()) == digest_of(rng.state_dict())
        # Lightning notes a reload for validation before this call, and one for training after it.
        reloaded_at = epoch if self._loop == "train" else private.reloaded_at(trainer, self._loop)
        self.last = LoaderCall(epoch, step, reloaded_at, None if unchanged else before())
        return made

    def _make_as(self, call: LoaderCall, make: Callable[[], Any]) -> Any:
        now = rng.state_dict()
        if call.generators is not None:
            rng.restore(call.generators)
        try:
            with private.counters_at(self._trainer, call.epoch, call.step):
                return make()
        finally:
            rng.restore(now)

    def resume(self, call: LoaderCall | None) -> bool:
        """Repeat the call that made the checkpoint's loaders. It is None if they had not been made yet.

        Returns:
            Whether a different call made the loaders in use.
        """
        self._resumed, self._again = True, call
        if self.last is None or call is None:
            return False
        same_place = (self.last.epoch, self.last.step) == (call.epoch, call.step)
        return not same_place or call.generators is not None

    def start(self) -> None:
        """Note that training starts: from now on, the Trainer asks for loaders only when a reload is due."""
        if self._resumed and self._again is None and self.last is not None:
            private.forget_loaders(self._trainer, self._loop)  # the checkpoint's run asks only when it first validates
            self.last = None
        self._training = True
        if self.last is not None:
            self._again = None
            private.note_reload(self._trainer, self._loop, self.last.reloaded_at)
