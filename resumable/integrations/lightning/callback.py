"""ResumableCallback: what Lightning's hooks mean for the data. Importing it imports neither Lightning nor torch."""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any, Self

from resumable._distribution import pip_install
from resumable._stats import LoaderStats, between
from resumable.errors import ConfigurationError, MissingDependencyError, PromiseWarning
from resumable.failpoints import notice, point
from resumable.integrations.lightning import private
from resumable.integrations.lightning.signals import RequeueSignal, TrainerPreemption

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from resumable.integrations.lightning.evaluating import EvaluationStreams
    from resumable.integrations.lightning.loaders import TrainStream
    from resumable.integrations.lightning.session import Session
    from resumable.loader.loader import Loader

__all__ = ["ResumableCallback", "derive_from_imported"]

_PACKAGES = {"lightning.pytorch": "lightning.pytorch.callbacks", "pytorch_lightning": "pytorch_lightning.callbacks"}


if TYPE_CHECKING:
    _Unknown = Any  # a callback of whichever package, to type checkers
else:

    class _Unknown:
        """Stands for Lightning's class until it is known; Python does not let the base `object` be replaced."""


class LightningCallback(_Unknown):  # type: ignore[misc]  # the class is known when Lightning is imported
    """A callback of the package that the user trains with: `lightning.pytorch`, `pytorch_lightning`, or both.

    The two packages hold different classes of the same name, and importing both costs seconds. So the base derives from
    theirs once they are imported: when a callback is looked up in this package, as LightningCLI does, and when one is
    made.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:  # LightningCLI takes one in a callback itself for its signature
        """Derive from the Lightning packages in use.

        Raises:
            MissingDependencyError: none is installed.
        """
        if not any(sys.modules.get(package) for package in _PACKAGES):
            _import_one()
        derive_from_imported()
        made: Self = object.__new__(cls)
        return made


def derive_from_imported() -> None:
    """Let `LightningCallback` derive from the callbacks of every Lightning package that is imported by now."""
    for package, module in _PACKAGES.items():
        if sys.modules.get(package):
            base = getattr(importlib.import_module(module), "Callback", None)  # none: it is being imported just now
            if base is not None and not issubclass(LightningCallback, base):
                known = (one for one in LightningCallback.__bases__ if one is not _Unknown)
                LightningCallback.__bases__ = (*known, base)


def _import_one() -> None:
    for package in _PACKAGES:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError:
            continue
        return
    raise MissingDependencyError(
        f"the Lightning callback needs Lightning, which is not installed.\nInstall it: {pip_install('lightning')}"
    )


derive_from_imported()


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
    _preemption: TrainerPreemption | None = None
    preemption = False  # also in those that were pickled before it
    _evaluated: EvaluationStreams | None = None  # outside of fit
    _curves: _Curves | None = None
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
        of_run = {"_session", "_requeue", "_preemption", "_evaluated", "_curves"}
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
        from resumable.integrations.lightning.session import Session  # noqa: PLC0415  # torch comes with it

        self._curves = _Curves(trainer) if self.log_stats else None
        # First of all, so that no other callback has drawn random numbers, or saves, before this one knows of a hook.
        trainer.callbacks = [self, *(callback for callback in trainer.callbacks if callback is not self)]
        _warn_of_limits(trainer, pl_module)
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
            self._preemption = TrainerPreemption(trainer)
        else:
            self._requeue = RequeueSignal(trainer, self._live.save_alone)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's signature
        """Follow a new epoch."""
        self._live.begin_epoch()

    def on_train_batch_start(self, *_: Any) -> None:
        """Hold back signals that save."""
        if self._requeue is not None:
            self._requeue.begin_batch()
        if self._preemption is not None:
            self._preemption.begin_batch()
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
        self._end_preemption()
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
        self._end_preemption()
        if self.save_on_sigterm and private.is_sigterm(exception) and self._session is not None:
            trainer.save_checkpoint(private.sigterm_path(trainer))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Give the loaders back."""
        self._end_evaluation(trainer)
        if stage == "fit" and self._session is not None:
            self._session.finish()

    def _begin_evaluation(self, trainer: Any, stage: str) -> None:
        from resumable.integrations.lightning.evaluating import EvaluationStreams  # noqa: PLC0415  # torch comes with it
        from resumable.integrations.lightning.loaders import divide_as_strategy  # noqa: PLC0415  # likewise

        self._evaluated = EvaluationStreams(lambda _: False, lambda loader: divide_as_strategy(loader, trainer))
        evaluated = self._evaluated
        private.swap_source_of(trainer, getattr(stage, "value", stage), lambda make: evaluated(make()))

    def _end_evaluation(self, trainer: Any) -> None:
        if self._evaluated is not None:
            self._evaluated.give_back()
            self._evaluated = None
            private.give_sources_back(trainer)

    def _end_preemption(self) -> None:
        if self._preemption is not None:
            self._preemption.end()
            self._preemption = None

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


_GROUP = "data"


class _Curves:
    """Logs what lies between two steps at which the Trainer logs, as its own monitors do: past the module.

    Args:
        trainer: the Trainer.

    Raises:
        ConfigurationError: it has no logger.
    """

    def __init__(self, trainer: Any) -> None:
        if not trainer.loggers:
            raise ConfigurationError(
                "ResumableCallback(log_stats=True) was given to a Trainer with logger=False.\n"
                "The numbers would go nowhere. Give the Trainer a logger, or leave log_stats out."
            )
        self._trainer = trainer
        self._last: dict[str, tuple[Loader, LoaderStats]] = {}

    def begin(self, streams: Sequence[TrainStream]) -> None:
        """Count from here on, whatever was read of the loaders before."""
        self._last = {stream.name: (stream.loader, stream.loader.stats()) for stream in streams}

    def log(self, streams: Sequence[TrainStream]) -> None:
        """Log what came since the last time, if the Trainer logs after this batch."""
        trainer = self._trainer
        if not private.logs_now(trainer) or private.is_accumulating(trainer):
            return
        values = {name: value for stream in streams for name, value in self._since_last(stream).items()}
        for logger in trainer.loggers:
            separator = logger.group_separator
            named = {separator.join((_GROUP, *path)): value for path, value in values.items()}
            logger.log_metrics(named, step=private.steps_logged(trainer))

    def _since_last(self, stream: TrainStream) -> dict[tuple[str, ...], float]:
        loader, now = stream.loader, stream.loader.stats()
        known, before = self._last.get(stream.name, (loader, LoaderStats()))
        self._last[stream.name] = loader, now
        recent = between(before if known is loader else LoaderStats(), now)
        return {(*_path(stream.name), name): value for name, value in _curves(recent).items()}


def _curves(stats: LoaderStats) -> dict[str, float]:
    seconds = stats.wait_seconds + stats.loop_seconds
    values = {
        "wait_fraction": stats.wait_fraction,
        "wait_seconds": stats.wait_seconds,
        "read_seconds": stats.read_seconds,
        "samples_per_second": stats.samples_per_second,
        "estimated_bytes_per_second": stats.estimated_bytes / seconds if seconds else 0.0,
        "queue_depth": stats.queue_depth,
        "starved_fraction": stats.starved_fraction,
    }
    return {name: value for name, value in values.items() if value is not None}


def _path(name: str) -> tuple[str, ...]:
    """Return the keys of a loader's place in the Trainer's collection, as in `["images"][0]`."""
    return () if name == private.THE_ONLY else tuple(re.findall(r"[\w .-]+", name))


def _warn_of_limits(trainer: Any, module: Any) -> None:
    """Warn of what Lightning itself does not resume; the callback brings the data to the exact batch."""
    for message in _limits(trainer, module):
        warnings.warn(message, PromiseWarning, stacklevel=1)


def _limits(trainer: Any, module: Any) -> Iterator[str]:
    if private.has_callback(trainer, "StochasticWeightAveraging"):
        yield (
            "StochasticWeightAveraging begins its averages at an epoch's start, and no checkpoint has a part of "
            "them.\nA run that is resumed in the middle of its epochs trains with another learning rate and "
            "average. Resume from checkpoints of its epochs' ends."
        )
    if private.has_callback(trainer, "BaseFinetuning"):  # BackboneFinetuning is one
        yield (
            "a BaseFinetuning callback, such as BackboneFinetuning, freezes layers when a run begins and unfreezes "
            "them at an epoch's start, which Lightning does not do again when it resumes.\nAfter that epoch, a "
            "resumed run leaves them frozen: their weights stay as they are. Resume from a checkpoint of before, or "
            "unfreeze them yourself in on_train_start."
        )
    narrow = sorted(_narrow(module)) if trainer.precision == "64-true" else []
    if narrow:
        yield (
            f"precision='64-true' makes the module's weights float64, and Lightning restores a checkpoint before: into "
            f"{', '.join(narrow)}.\nA resumed run goes on with weights that are rounded to that. Call model.double() "
            "before fit, which makes them float64 from the start."
        )


def _narrow(module: Any) -> set[str]:
    """Return the types of the weights that are to be made float64."""
    weights = (*module.parameters(), *module.buffers())
    types = {weight.dtype for weight in weights if weight.is_floating_point()}
    return {str(one).removeprefix("torch.") for one in types if str(one) != "torch.float64"}
