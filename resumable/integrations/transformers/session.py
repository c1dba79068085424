"""One Trainer and its Loader: loads the state when a run starts, acknowledges batches, and saves with checkpoints."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from resumable.errors import CheckpointNotFoundError, ConfigurationError, PromiseWarning, StateMismatchError
from resumable.integrations._buffers import Buffers
from resumable.integrations._saved import gather, gather_at_step
from resumable.integrations.transformers import private
from resumable.integrations.transformers.refusals import (
    check_epochs,
    check_loader,
    check_settings_of,
    check_types,
    refuse_options,
)
from resumable.integrations.transformers.train_loader import DRIVER, HINT, TrainLoader
from resumable.integrations.transformers.transformers_state import (
    NAME,
    TransformersState,
    load_buffers,
    newest_whole,
    read_saved,
    save_buffers,
)
from resumable.loader.loader import Loader
from resumable.loader.wrap import wrap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from resumable._order.cursor import Cursor

__all__ = ["ResumableState", "Session"]

_OPTIONS = (
    "With the Trainer, use the batch size and the data of the checkpoint, without on_change or strict=False: the "
    "Trainer counts the whole run in steps of one batch size, so the epochs would end at different steps."
)


class Session:
    """Connects a Trainer with a Loader by replacing methods of the Trainer.

    Args:
        trainer: the Trainer.
        loader: the Loader to train from; None to wrap the Trainer's own train dataloader.
        options: of `wrap`, if `loader` is None.

    Attributes:
        to_save: the Loader's part of the checkpoint that is being saved; None before the first one.
    """

    def __init__(self, trainer: Any, loader: Loader[Any] | None, options: Mapping[str, Any]) -> None:
        self._trainer, self._given, self._options = trainer, loader, options
        self._loader: TrainLoader | None = None  # of the run
        self._driven: Loader[Any] | None = None  # the Loader that this Trainer controls
        self._first: dict[str, Any] | None = None  # state of the user's Loader before the first run
        self._inside = False
        self._checkpoint: str | None = None
        self._saved: TransformersState | None = None
        self._ended = False
        self._stopped_at: int | None = None  # the epoch that a callback had ended before the checkpoint
        self.to_save: TransformersState | None = None
        self.callback = ResumableState(self)

    def install(self) -> None:
        """Replace the Trainer's methods that load data, resume or save.

        Raises:
            ConfigurationError: a different training run uses the Loader.
        """
        if self._given is not None:
            self._drive(self._given)
        self._trainer.add_callback(self.callback)
        private.replace(self._trainer, "train", self._train)
        private.replace(self._trainer, "_inner_training_loop", self._run)
        private.replace(self._trainer, "get_train_dataloader", self._get_train_dataloader)
        private.replace(self._trainer, "_init_training_state", self._begin_state)
        private.replace(self._trainer, "_save_rng_state", self._save)

    @property
    def _ranks(self) -> tuple[int, int]:
        return self._trainer.args.process_index, self._trainer.args.world_size

    # ------------------------------------------------------------------ the start of a run

    def _train(self, train: Callable[..., Any], resume_from_checkpoint: Any = None, *rest: Any, **options: Any) -> Any:
        if resume_from_checkpoint is True:
            resume_from_checkpoint = self._newest()
        elif resume_from_checkpoint:
            resume_from_checkpoint = os.fspath(resume_from_checkpoint)
            read_saved(resume_from_checkpoint)
        return train(resume_from_checkpoint, *rest, **options)

    def _newest(self) -> str | bool:
        """Return the newest complete checkpoint that rank 0 finds; True, for the Trainer, if there is none at all."""
        from accelerate.utils import broadcast_object_list  # noqa: PLC0415  # takes seconds

        folder = self._trainer.args.output_dir
        torn = bool(private.checkpoints_in(folder))
        found: list[Any] = [newest_whole(folder), torn]
        newest, torn = broadcast_object_list(found) if self._ranks[1] > 1 else found
        if newest is None and torn:
            raise CheckpointNotFoundError(
                f"{folder} has checkpoints, but none can be resumed: each is incomplete or has no position of the data."
                "\nEither a save was killed, or the checkpoints were saved without prepare(). Delete them, and start a "
                "new run with train()."
            )
        return newest or True

    def _run(
        self,
        run: Callable[..., Any],
        batch_size: int | None = None,
        *rest: Any,
        resume_from_checkpoint: str | None = None,
        **options: Any,
    ) -> Any:
        self._checkpoint, self._inside, self._loader = resume_from_checkpoint, True, None
        try:
            with private.skipping_by(self._skip):
                return run(batch_size, *rest, resume_from_checkpoint=resume_from_checkpoint, **options)
        finally:
            self._inside = False
            self._give_back()

    def _get_train_dataloader(self, get: Callable[[], Any]) -> TrainLoader:
        if self._inside and self._loader is not None:
            return self._loader  # a callback asks for it; a new one would restart the run
        loader = self._given or self._wrapped(get)
        prepared = TrainLoader(loader, self._trainer.accelerator, self._gives_nothing, self._may_look)
        if self._inside:
            self._begin(prepared)
        return prepared

    def _wrapped(self, get: Callable[[], Any]) -> Loader[Any]:
        args = self._trainer.args
        with private.unprepared(self._trainer):
            source = get()
        if isinstance(source, Loader):
            return self._take(source)
        options = {"seed": args.seed if args.data_seed is None else args.data_seed, **self._options}
        shared = args.world_size > 1 and getattr(source, "sampler", None) is not None
        if shared and not args.dataloader_drop_last and _is_map_style(source):
            options.setdefault("tail", "pad_ranks")  # as with even_batches of Accelerate
        return wrap(source, **options)

    def _take(self, loader: Loader[Any]) -> Loader[Any]:
        """Use a Loader from a custom `get_train_dataloader` like one that was passed to `prepare`."""
        refuse_options(self._options)
        check_types(self._trainer, loader)
        check_settings_of(self._trainer, loader)
        self._drive(loader)
        self._given = loader
        return loader

    def _begin(self, prepared: TrainLoader) -> None:
        loader = prepared.loader
        check_loader(self._trainer, loader)
        self._drive(loader)
        self._loader, self._ended, self._stopped_at, self.to_save = prepared, False, None, None
        if self._given is not None and self._first is None:
            self._first = _state_at_start(loader)
        self._saved = None if self._checkpoint is None else read_saved(self._checkpoint)
        if self._saved is not None:
            try:
                loader.load_state_dict(self._saved.of_rank(*self._ranks)["loaders"][0])
            except StateMismatchError as error:
                error.add_note(_OPTIONS)
                raise
        elif self._first is not None:
            loader.load_state_dict(self._first)

    def _drive(self, loader: Loader[Any]) -> None:
        """Take control of a Loader: only optimizer steps acknowledge its batches.

        Raises:
            ConfigurationError: a different training run uses the Loader.
            UnsupportedError: batches of the Loader are in flight, and its source cannot go back.
        """
        if loader is not self._driven:
            loader.drive(DRIVER, HINT)
            self._driven = loader

    def _give_back(self) -> None:
        """Return the Loader to the user, or close it if it was wrapped only for this run."""
        driven, self._driven = self._driven, None
        if driven is not None:
            driven.give_back()
            if driven is not self._given:
                driven.close()

    def _begin_state(
        self, begin: Callable[..., Any], max_steps: int, updates: int, epochs: int, *rest: Any
    ) -> tuple[int, int]:
        position: tuple[int, int] = begin(max_steps, updates, epochs, *rest)
        self._keep_callback()
        self._trainer.state.stateful_callbacks.setdefault(NAME, self.callback.state())
        if self._loader is not None:
            check_epochs(self._loader, epochs)
        if self._saved is None:
            return position
        if self._is_done() and self._saved.ended:  # nothing is left to do, not even the end of the epoch
            assert self._checkpoint is not None
            private.load_generators(self._trainer, self._checkpoint)
            return epochs, 0
        return self._position()

    def _position(self) -> tuple[int, int]:
        """Return the Loader's epoch, and how many of its micro-batches are in the weights."""
        assert self._loader is not None
        assert self._saved is not None
        cursor, accumulation = self._acknowledged, self._trainer.args.gradient_accumulation_steps
        self._stopped_at = cursor.epoch if self._saved.epoch_stopped else None
        whole = self._loader.loader.is_sized and cursor.step == len(self._loader)
        if cursor.step % accumulation and not whole:
            raise StateMismatchError(
                "gradient_accumulation_steps differs from the checkpoint's, which is after "
                f"{cursor.step} micro-batches of epoch {cursor.epoch}.\n"
                f"  in the checkpoint: {self._saved.accumulation}\n  in this run:       {accumulation}\n"
                f"{cursor.step} is not a multiple of {accumulation}, so gradients would be accumulated across two "
                "optimizer steps. Resume with the old value. You can change it at the end of an epoch."
            )
        return cursor.epoch, cursor.step

    def _keep_callback(self) -> None:
        """Replace the callback that the Trainer made from the checkpoint. Warn if others were not restored."""
        callbacks = private.callbacks(self._trainer)
        for number, one in enumerate(callbacks):
            if type(one) is ResumableState and one is not self.callback:
                callbacks[number] = self.callback
        if self._saved is not None and not self._trainer.args.restore_callback_states_from_checkpoint:
            there = set(self._trainer.state.stateful_callbacks) - {NAME}
            lost = sorted(there & {type(one).__name__ for one in callbacks})
            if lost:
                warnings.warn(
                    f"the Trainer does not restore the state of {', '.join(lost)} from the checkpoint.\nUnlike in an "
                    "uninterrupted run, its counts restart, so training may stop at a different step. Use "
                    "TrainingArguments(restore_callback_states_from_checkpoint=True).",
                    PromiseWarning,
                    stacklevel=2,
                )

    def _skip(self, loader: Any, count: int, skip: Callable[..., Any]) -> Any:
        """Skip nothing: the Loader is already at its position, while the Trainer would read and drop batches."""
        if loader is not self._loader or self._checkpoint is None:
            return skip(loader, count)
        private.load_generators(self._trainer, self._checkpoint)
        return loader

    # ------------------------------------------------------------------ during a run

    def _is_done(self) -> bool:
        """Return whether the run has reached its last step, or a callback had stopped it before the checkpoint."""
        state, saved = self._trainer.state, self._saved
        if not self._inside:
            return False
        if saved is not None and saved.stopped and saved.max_steps == state.max_steps:
            return True
        return bool(state.global_step >= state.max_steps > 0)

    def _may_look(self) -> bool:
        """Return whether the Loader is waiting for its first run, which will deliver all its batches."""
        return self._driven is not None and not self._inside

    def _gives_nothing(self) -> bool:
        """Return whether no batches are left: the run is done, or a callback had ended the epoch before the save."""
        return self._is_done() or (self._stopped_at is not None and self._stopped_at == self._acknowledged.epoch)

    @property
    def _acknowledged(self) -> Cursor:
        assert self._loader is not None
        return self._loader.loader.progress.acknowledged

    def go_on(self) -> None:
        """Restore the losses and counts that were not logged yet, and this rank's own buffers."""
        if self._saved is None or self._checkpoint is None:
            return
        rank, size = self._ranks
        private.begin_logs(self._trainer, self._saved.loss_of(rank, size), self._saved.mean_loss, self._saved.logged)
        counts = self._saved.counts_of(rank, size)
        if counts is not None and private.counts(self._trainer) is not None:
            private.begin_counts(self._trainer, counts)
        if size == len(self._saved.ranks):
            load_buffers(self._trainer.model, self._checkpoint, rank)

    def acknowledge(self) -> None:
        """Acknowledge all delivered batches."""
        self._ended = False
        if self._loader is not None:
            self._loader.loader.ack(self._loader.loader.progress.in_flight)

    def end_epoch(self, *, stops: bool) -> None:
        """Count the epoch as done, unless the run stops in the middle of it: a longer run would continue there."""
        self._ended = True
        if self._loader is None:
            return
        left = not self._loader.loader.is_sized or self._acknowledged.step < len(self._loader)
        if not ((stops or self._is_done()) and left):
            self._loader.end_epoch()

    def _save(self, save: Callable[..., Any], output_dir: str) -> Any:
        result = save(output_dir)
        if self._loader is not None:
            self.to_save = self._gathered(self._loader.loader, output_dir)
        return result

    def _gathered(self, loader: Loader[Any], folder: str) -> TransformersState:
        """Return the states of all ranks. The ranks wait for each other, so rank 0 writes the last file last."""
        rank, size = self._ranks
        losses, logged = private.logged(self._trainer)
        own = {"loaders": [loader.state_dict()], "losses": losses, "counts": private.counts(self._trainer)}
        buffers = [Buffers(self._trainer.model).keep()] if size > 1 else []
        ranks, differ = gather_at_step(own, buffers, size)
        if any(differ):
            if differ[rank]:
                save_buffers(buffers[0], folder, rank)
            gather(None, size)  # wait until all ranks have written their buffers
        control = self._trainer.control
        return TransformersState(
            ranks=ranks,
            accumulation=self._trainer.args.gradient_accumulation_steps,
            logged=logged,
            ended=self._ended,
            epoch_stopped=bool(control.should_epoch_stop) and not self._ended,
            stopped=bool(control.should_training_stop) and not self._is_done(),
            max_steps=self._trainer.state.max_steps,
        )


def _state_at_start(loader: Loader[Any]) -> dict[str, Any]:
    """Return the state of a Loader at epoch 0, step 0: the position at which a run of the Trainer starts.

    Raises:
        ConfigurationError: the Loader is at a different position.
    """
    loader.progress.rewind()  # batches that the user only inspected do not count
    at = loader.progress.delivered
    if at.position or at.epoch:
        raise ConfigurationError(
            f"the Loader is at {at}, but the Trainer starts at epoch 0, step 0.\n"
            "The Trainer's counters, schedule and epoch ends would not match the data. Pass the Loader as wrap() "
            "returned it; train(resume_from_checkpoint=...) moves it to the saved position."
        )
    return loader.state_dict()


def _is_map_style(source: Any) -> bool:
    from torch.utils.data import IterableDataset  # noqa: PLC0415  # takes seconds

    return not isinstance(getattr(source, "dataset", None), IterableDataset)


class ResumableState(TrainerCallback, ExportableState):  # type: ignore[misc]  # transformers is untyped here
    """Saves the Loader's state under its own name in `trainer_state.json`.

    Args:
        session: of the Trainer. When the Trainer restores callbacks from a checkpoint, it makes one without a session,
            and the session replaces it.
    """

    def __init__(self, session: Session | None = None) -> None:
        self._session = session

    def state(self) -> dict[str, Any]:
        """Return the Loader's part of the checkpoint. It is empty before the first save."""
        saved = None if self._session is None else self._session.to_save
        return {"args": {}, "attributes": {} if saved is None else {"saved": saved.as_dict()}}

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Restore what the Trainer itself does not."""
        if self._session is not None:
            self._session.go_on()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Acknowledge all delivered batches: the Trainer fetches the batches of only one step."""
        if self._session is not None:
            self._session.acknowledge()

    def on_epoch_end(self, _: Any, __: Any, control: Any, **___: Any) -> None:
        """Count the epoch as done, unless the run stops in the middle of it."""
        if self._session is not None:
            self._session.end_epoch(stops=control.should_training_stop)
