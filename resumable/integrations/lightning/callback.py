"""`ResumableCallback`, Lightning's hooks for the data. Importing this module imports neither Lightning nor PyTorch."""

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
    _Unknown = Any  # type checkers see a callback of either package
else:

    class _Unknown:
        """A placeholder for Lightning's class. The base `object` would not do: Python does not let it be replaced."""


class LightningCallback(_Unknown):  # type: ignore[misc]  # the class is known when Lightning is imported
    """A callback of the package that the user trains with: `lightning.pytorch`, `pytorch_lightning`, or both.

    The two packages have different classes with the same name, and importing both takes seconds. So this class gets
    their bases only once they are imported. It checks for them when a callback is created, and when one is imported
    from this package, as LightningCLI does.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:  # in a callback itself, LightningCLI would read it as the signature
        """Derive from the Lightning packages in use.

        Raises:
            MissingDependencyError: neither is installed.
        """
        if not any(sys.modules.get(package) for package in _PACKAGES):
            _import_one()
        derive_from_imported()
        made: Self = object.__new__(cls)
        return made


class ResumableCallback(LightningCallback):
    """Makes a run of the Lightning Trainer resume at the exact batch from any checkpoint that the Trainer saves.

        loader = resumable.wrap(DataLoader(dataset, batch_size=64, shuffle=True), seed=0)
        trainer = Trainer(callbacks=[ResumableCallback(), ModelCheckpoint(every_n_train_steps=100, save_last=True)])
        trainer.fit(model, loader, ckpt_path="last")

    The callback saves no files. It adds the position of the train loaders, the matching counters of the Trainer, and
    the RNG states of every rank to each checkpoint of the Trainer. On resume it restores all of them. It works with
    both `lightning.pytorch` and `pytorch_lightning`.

    Args:
        wrap: wrap train loaders that are not resumable Loaders, wherever the Trainer gets them. Pass a dictionary to
            set options of `resumable.wrap`, such as `{"seed": 1}`. The default seed is the one of `seed_everything`,
            or 0.
        save_on_sigterm: save `last-sigterm.ckpt` when SIGTERM ends the run (preemption). The file is in the folder of
            the first ModelCheckpoint, where `ckpt_path="last"` finds it.
        preemption: stop all ranks before the same batch when one of them gets SIGTERM or SIGUSR1, save
            `last-sigterm.ckpt`, and exit with status 75. In a SLURM job, call `scontrol requeue` first. This uses
            `resumable.preemption` instead of Lightning's handlers, which do not make the ranks agree on a step.
        strict: raise an error if a checkpoint does not fit this run, or was saved without this callback. With False,
            warn instead, and continue as close to the checkpoint as possible.
        log_stats: log `stats()` of each train loader with the Trainer's loggers, as `data/wait_fraction` and so on.
            Each value covers the steps since the last log (`log_every_n_steps`). If there are several loaders, the
            names include theirs, as in `data/a/wait_fraction`. Logging does not change the run.
    """

    _session: Session | None = None
    _requeue: RequeueSignal | None = None
    _preemption: TrainerPreemption | None = None
    preemption = False  # for callbacks that were pickled before this option existed
    _evaluated: EvaluationStreams | None = None  # outside of fit
    _curves: _Curves | None = None
    log_stats = False  # for callbacks that were pickled before this option existed

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
                "save_on_sigterm=True and preemption=True were both set, and each would save on SIGTERM.\n"
                "Use only preemption=True: it stops all ranks at the same step, then saves."
            )
        self.save_on_sigterm = save_on_sigterm
        self.preemption = preemption
        self.strict = strict
        self.log_stats = log_stats

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the options, but not the state of a run."""
        of_run = {"_session", "_requeue", "_preemption", "_evaluated", "_curves"}
        return _make, (type(self),), {name: value for name, value in vars(self).items() if name not in of_run}

    @property
    def state_key(self) -> str:
        """The key of the callback's state in `checkpoint["callbacks"]`."""
        return "ResumableCallback"

    # ------------------------------------------------------------------ Lightning's hooks

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Track the train loaders of a `fit`, and let evaluation loaders start at their first batch each time."""
        if stage != "fit":
            self._begin_evaluation(trainer, stage)
            return
        if sum(isinstance(callback, ResumableCallback) for callback in trainer.callbacks) > 1:
            raise ConfigurationError(
                "the Trainer has more than one ResumableCallback, and each would acknowledge every batch.\n"
                "Pass only one."
            )
        from resumable.integrations.lightning.session import Session  # noqa: PLC0415  # imports torch

        self._curves = _Curves(trainer) if self.log_stats else None
        # Run first: no other callback may use random numbers or save before this one has seen the hook.
        trainer.callbacks = [self, *(callback for callback in trainer.callbacks if callback is not self)]
        _warn_of_limits(trainer, pl_module)
        self._session = Session(trainer, self.wrap, strict=self.strict)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002  # Lightning's signature
        """Read the saved position from the checkpoint to resume from."""
        if self._session is not None and trainer.state.fn == "fit":
            notice("lightning.load", trainer)
            self._session.load(checkpoint["callbacks"].get(self.state_key), checkpoint)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's signature
        """Start training, from the checkpoint's position if there is one."""
        self._live.start()
        if self._curves is not None:
            self._curves.begin(self._live.streams)
        point("lightning.start", trainer)
        if self.preemption:
            self._preemption = TrainerPreemption(trainer)
        else:
            self._requeue = RequeueSignal(trainer, self._live.save_alone)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's signature
        """Track a new epoch."""
        self._live.begin_epoch()

    def on_train_batch_start(self, *_: Any) -> None:
        """Defer signals that save."""
        if self._requeue is not None:
            self._requeue.begin_batch()
        if self._preemption is not None:
            self._preemption.begin_batch()
        point("lightning.batch_start")

    def on_train_batch_end(self, *_: Any) -> None:
        """Acknowledge the batch once the optimizer has stepped."""
        self._live.follow()
        if self._curves is not None:
            self._curves.log(self._live.streams)
        point("lightning.batch_end")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's signature
        """Note that validation may use random numbers."""
        if self._session is not None and trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._session.note_validation()
            self._release()
            point("lightning.validation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's signature
        """Note that validation is done."""
        if self._session is not None and trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._session.end_validation()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's signature
        """Move the loaders to their next epoch."""
        self._live.end_epoch()
        self._release()
        point("lightning.epoch_end")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # Lightning's signature
        """Report the final weights to a chaos run."""
        self._end_preemption()
        point("lightning.end", trainer)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002  # Lightning's signature
        """Add the position that matches the weights to a checkpoint."""
        part = None if self._session is None else self._session.save(checkpoint)
        if part is not None:
            point("lightning.save", trainer, part)
            checkpoint["callbacks"][self.state_key] = part

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002  # Lightning's signature
        """Save if SIGTERM ends the run and `save_on_sigterm` is set."""
        self._end_evaluation(trainer)
        self._end_preemption()
        if self.save_on_sigterm and private.is_sigterm(exception) and self._session is not None:
            trainer.save_checkpoint(private.sigterm_path(trainer))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002  # Lightning's signature
        """Return the loaders to the user."""
        self._end_evaluation(trainer)
        if stage == "fit" and self._session is not None:
            self._session.finish()

    def _begin_evaluation(self, trainer: Any, stage: str) -> None:
        from resumable.integrations.lightning.evaluating import EvaluationStreams  # noqa: PLC0415  # imports torch
        from resumable.integrations.lightning.loaders import divide_as_strategy  # noqa: PLC0415  # the same

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
    """Create a copy without options, for pickle."""
    return own.__new__(own)


def derive_from_imported() -> None:
    """Let `LightningCallback` derive from the callback class of every Lightning package that is imported by now."""
    for package, module in _PACKAGES.items():
        if sys.modules.get(package):
            base = getattr(importlib.import_module(module), "Callback", None)  # None while it is being imported
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
        f"ResumableCallback needs Lightning, which is not installed.\nInstall it: {pip_install('lightning')}"
    )


derive_from_imported()

_GROUP = "data"


class _Curves:
    """Logs the loaders' statistics, directly to the loggers as Lightning's own monitors do.

    Args:
        trainer: the Trainer.

    Raises:
        ConfigurationError: the Trainer has no logger.
    """

    def __init__(self, trainer: Any) -> None:
        if not trainer.loggers:
            raise ConfigurationError(
                "ResumableCallback has log_stats=True, but the Trainer has no logger (logger=False).\n"
                "The statistics could not be logged. Pass a logger to the Trainer, or remove log_stats=True."
            )
        self._trainer = trainer
        self._last: dict[str, tuple[Loader, LoaderStats]] = {}

    def begin(self, streams: Sequence[TrainStream]) -> None:
        """Start counting now, without the batches that were read before."""
        self._last = {stream.name: (stream.loader, stream.loader.stats()) for stream in streams}

    def log(self, streams: Sequence[TrainStream]) -> None:
        """Log the statistics since the last log, if the Trainer logs after this batch."""
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
    """Return the keys of a loader in the Trainer's collection: `images` and `0` for `["images"][0]`."""
    return () if name == private.THE_ONLY else tuple(re.findall(r"[\w .-]+", name))


def _warn_of_limits(trainer: Any, module: Any) -> None:
    """Warn about features that Lightning itself does not resume, although the data continues at the exact batch."""
    for message in _limits(trainer, module):
        warnings.warn(message, PromiseWarning, stacklevel=1)


def _limits(trainer: Any, module: Any) -> Iterator[str]:
    if private.has_callback(trainer, "StochasticWeightAveraging"):
        yield (
            "the Trainer uses StochasticWeightAveraging, which Lightning cannot resume mid-epoch: the averages are not "
            "saved.\nAfter a mid-epoch resume, the learning rate and the averages differ. Resume only from checkpoints "
            "that were saved at the end of an epoch."
        )
    if private.has_callback(trainer, "BaseFinetuning"):  # BackboneFinetuning is one
        yield (
            "the Trainer uses a BaseFinetuning callback, such as BackboneFinetuning: it freezes layers when a run "
            "starts and unfreezes them at a later epoch, but Lightning does not repeat the unfreezing on resume.\nIf "
            "the run is resumed after that epoch, the layers stay frozen and their weights no longer change. Resume "
            "from an earlier checkpoint, or unfreeze the layers in on_train_start."
        )
    narrow = sorted(_narrow(module)) if trainer.precision == "64-true" else []
    if narrow:
        yield (
            "precision='64-true' converts the module's weights to float64, but Lightning loads a checkpoint before "
            f"that, into {', '.join(narrow)}.\nA resumed run continues with rounded weights. Call model.double() "
            "before fit."
        )


def _narrow(module: Any) -> set[str]:
    """Return the floating-point types among the weights that are not float64."""
    weights = (*module.parameters(), *module.buffers())
    types = {weight.dtype for weight in weights if weight.is_floating_point()}
    return {str(one).removeprefix("torch.") for one in types if str(one) != "torch.float64"}
