"""ResumableCallback: what Lightning's hooks mean for the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable.errors import ConfigurationError
from resumable.failpoints import notice, point
from resumable.integrations.lightning import private
from resumable.integrations.lightning.bases import LightningCallback
from resumable.integrations.lightning.limits import warn_of_limits
from resumable.integrations.lightning.requeue import RequeueSignal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resumable.integrations.lightning.curves import Curves
    from resumable.integrations.lightning.evaluating import EvaluationStreams
    from resumable.integrations.lightning.preempting import Preempting
    from resumable.integrations.lightning.session import Session

__all__ = ["ResumableCallback"]


class ResumableCallback(LightningCallback):
    """Makes a run of the Lightning Trainer resume at the exact batch, from any checkpoint that the Trainer saves.

        loader = resumable.wrap(DataLoader(dataset, batch_size=64, shuffle=True), seed=0)
        trainer = Trainer(callbacks=[ResumableCallback(), ModelCheckpoint(every_n_train_steps=100, save_last=True)])
        trainer.fit(model, loader, ckpt_path="last")

    It saves nothing itself: it adds to each checkpoint of the Trainer the place of the train loaders, the Trainer's
    counters of that place, and the random generators of every rank; and brings a resumed run there. Works with
    `lightning.pytorch` and with `pytorch_lightning`.

    Args:
        wrap: wrap train loaders that are no resumable Loaders, wherever the Trainer has them from; or the options for
            `resumable.wrap`, such as `{"seed": 1}`. The seed is that of `seed_everything` by default, or 0.
        save_on_sigterm: save a checkpoint when SIGTERM ends the run (preemption), as `last-sigterm.ckpt` in the folder
            of the first ModelCheckpoint, where `ckpt_path="last"` finds it.
        preemption: stop all ranks before the same batch when one of them gets SIGTERM or SIGUSR1, save there under the
            same name, and exit with status 75, after `scontrol requeue` in a SLURM job: `resumable.preemption` in place
            of Lightning's handlers, which have no step that the ranks agree on.
        strict: refuse a checkpoint that does not fit this run, or has been saved without this callback. Without, both
            are warned about, and the run goes on as near to it as possible.
        log_stats: log what `stats()` of each train loader says, as `data/wait_fraction` and the like, by the Trainer's
            loggers at every `log_every_n_steps`: what came since the last time. Of the loader `"a"` of several it is
            `data/a/wait_fraction`. The run is the same without.
    """

    _session: Session | None = None
    _requeue: RequeueSignal | None = None
    _preempting: Preempting | None = None
    preemption = False  # also in those that were pickled before it
    _evaluated: EvaluationStreams | None = None  # outside of fit
    _curves: Curves | None = None
    log_stats = False  # also in those that were pickled before it

    def __init__(
        self,
        *,
        wrap: bool | Mapping[str, Any] = False,
        save_on_sigterm: bool = False,
        preemption: bool = False,
        strict: bool = True,
        log_stats: bool = False,
    ) -> None:
        self.wrap = wrap
        if save_on_sigterm and preemption:
            raise ConfigurationError(
                "save_on_sigterm=True and preemption=True both save when SIGTERM comes.\n"
                "Use preemption=True alone: it stops all ranks at one step, and then saves."
            )
        self.save_on_sigterm = save_on_sigterm
        self.preemption = preemption
        self.strict = strict
        self.log_stats = log_stats

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the options, and nothing of a run."""
        of_run = {"_session", "_requeue", "_preempting", "_evaluated", "_curves"}
        return _make, (type(self),), {name: value for name, value in vars(self).items() if name not in of_run}

    @property
    def state_key(self) -> str:
        """Where its part of a checkpoint is, under `checkpoint["callbacks"]`."""
        return "ResumableCallback"

    # ------------------------------------------------------------------ Lightning's hooks

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Follow the train loaders of a `fit`, and let those for evaluation begin at their beginning each time."""
        if stage != "fit":
            self._begin_evaluation(trainer, stage)
            return
        if sum(isinstance(callback, ResumableCallback) for callback in trainer.callbacks) > 1:
            raise ConfigurationError(
                "the Trainer has more than one ResumableCallback.\nEach would acknowledge every batch. Give it one."
            )
        from resumable.integrations.lightning.curves import Curves  # noqa: PLC0415  # torch comes with it
        from resumable.integrations.lightning.session import Session  # noqa: PLC0415  # torch comes with it

        self._curves = Curves(trainer) if self.log_stats else None
        # First of all, so that no other callback has drawn random numbers, or saves, before this one knows of a hook.
        trainer.callbacks = [self, *(callback for callback in trainer.callbacks if callback is not self)]
        warn_of_limits(trainer, pl_module)
        self._session = Session(trainer, self.wrap, strict=self.strict)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002  # Lightning's signature
        """Take the place of a checkpoint to resume from."""
        if self._session is not None and trainer.state.fn == "fit":
            notice("lightning.load", trainer)
            self._session.load(checkpoint["callbacks"].get(self.state_key), checkpoint)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's signature
        """Begin to train, or go to the checkpoint's place."""
        self._live.start()
        if self._curves is not None:
            self._curves.begin(self._live.streams)
        point("lightning.start", trainer)
        if self.preemption:
            from resumable.integrations.lightning.preempting import Preempting  # noqa: PLC0415  # where it is wanted

            self._preempting = Preempting(trainer)
        else:
            self._requeue = RequeueSignal(trainer, self._live.save_alone)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's signature
        """Follow a new epoch."""
        self._live.begin_epoch()

    def on_train_batch_start(self, *_: Any) -> None:
        """Hold back signals that save."""
        if self._requeue is not None:
            self._requeue.begin_batch()
        if self._preempting is not None:
            self._preempting.begin_batch()
        point("lightning.batch_start")

    def on_train_batch_end(self, *_: Any) -> None:
        """Count the batch as trained on, once the optimizer has stepped."""
        self._live.follow()
        if self._curves is not None:
            self._curves.log(self._live.streams)
        point("lightning.batch_end")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's signature
        """Note that random numbers are used up."""
        if self._session is not None and trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._session.note_validation()
            self._release()
            point("lightning.validation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's signature
        """Note that the validation that was due is done."""
        if self._session is not None and trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._session.end_validation()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's signature
        """Let the loaders go to their next epoch."""
        self._live.end_epoch()
        self._release()
        point("lightning.epoch_end")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's signature
        """Show a chaos run the final weights."""
        self._end_preempting()
        point("lightning.end", trainer)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002  # Lightning's signature
        """Add the place of the weights to a checkpoint."""
        part = None if self._session is None else self._session.save(checkpoint)
        if part is not None:
            point("lightning.save", trainer, part)
            checkpoint["callbacks"][self.state_key] = part

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002  # Lightning's signature
        """Save where SIGTERM ends the run, if that is asked for."""
        self._end_evaluation(trainer)
        self._end_preempting()
        if self.save_on_sigterm and private.is_sigterm(exception) and self._session is not None:
            trainer.save_checkpoint(private.sigterm_path(trainer))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Give the loaders back."""
        self._end_evaluation(trainer)
        if stage == "fit" and self._session is not None:
            self._session.finish()

    def _begin_evaluation(self, trainer: Any, stage: str) -> None:
        from resumable.integrations.lightning.evaluating import EvaluationStreams  # noqa: PLC0415  # torch comes with it
        from resumable.integrations.lightning.shares import divide_as_strategy  # noqa: PLC0415  # likewise

        self._evaluated = EvaluationStreams(lambda _: False, lambda loader: divide_as_strategy(loader, trainer))
        evaluated = self._evaluated
        private.swap_source_of(trainer, getattr(stage, "value", stage), lambda make: evaluated(make()))

    def _end_evaluation(self, trainer: Any) -> None:
        if self._evaluated is not None:
            self._evaluated.give_back()
            self._evaluated = None
            private.give_sources_back(trainer)

    def _end_preempting(self) -> None:
        if self._preempting is not None:
            self._preempting.end()
            self._preempting = None

    def _release(self) -> None:
        if self._requeue is not None:
            self._requeue.release()

    @property
    def _live(self) -> Session:
        assert self._session is not None
        return self._session


def _make(own: type[ResumableCallback]) -> ResumableCallback:
    """Make a copy without options, for pickle."""
    return own.__new__(own)
