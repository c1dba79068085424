"""All undocumented parts of Lightning that this package uses, in one place.

Before a run starts, `check_names` rejects a version that is too old, and names that a newer one has removed.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Literal

from resumable.integrations import _library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    Change: TypeAlias = Callable[[Callable[[], Any]], Any]  # gets the function that makes the Trainer's loaders

__all__ = [
    "FIT_LOOP",
    "THE_ONLY",
    "Loop",
    "at_epoch_end",
    "begin_epoch_again",
    "call_after_interruption",
    "call_at_entry",
    "callback_states",
    "check_names",
    "counters",
    "counters_at",
    "finish_batch",
    "finish_epoch",
    "forget_loaders",
    "give_sources_back",
    "gives_iterator",
    "has_callback",
    "is_accumulating",
    "is_beginning",
    "is_ending",
    "is_interrupted",
    "is_over",
    "is_reload_due",
    "is_restoring",
    "is_sigterm",
    "logs_now",
    "metrics",
    "note_reload",
    "partial_metrics",
    "reloaded_at",
    "requeue_handler",
    "restart_fetching",
    "restore_consumed",
    "restore_metrics",
    "set_lengths",
    "sigterm_path",
    "steps_logged",
    "swap_source_of",
    "swap_sources",
    "train_reader",
]

FIT_LOOP = "fit_loop"  # key in the checkpoint's "loops"
THE_ONLY = "(the only one)"  # name of a train loader outside a collection
Loop = Literal["train", "validation"]

_NAMES = """
    _logger_connector._callback_metrics
    _logger_connector.should_update_logs
    _checkpoint_connector._loaded_checkpoint
    _signal_connector._slurm_sigusr_handler_fn
    _teardown
    interrupted
    fit_loop._can_stop_early
    fit_loop._combined_loader
    fit_loop._data_fetcher
    fit_loop._data_source.dataloader
    fit_loop._last_train_dl_reload_epoch
    fit_loop._restarting
    fit_loop.epoch_progress.current.completed
    fit_loop.epoch_progress.current.processed
    fit_loop.epoch_progress.total.completed
    fit_loop.max_batches
    fit_loop.epoch_loop._batches_that_stepped
    fit_loop.epoch_loop._results
    fit_loop.epoch_loop._num_ready_batches_reached
    fit_loop.epoch_loop._should_accumulate
    fit_loop.epoch_loop._skip_next_val
    fit_loop.epoch_loop.batch_progress.current.ready
    fit_loop.epoch_loop.batch_progress.is_last_batch
    fit_loop.epoch_loop.batch_progress.total.processed
    fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed
    fit_loop.epoch_loop.manual_optimization.optim_step_progress.total.completed
    fit_loop.epoch_loop.on_advance_end
    fit_loop.epoch_loop.reset
    fit_loop.epoch_loop.update_lr_schedulers
    fit_loop.epoch_loop.val_loop._combined_loader
    fit_loop.epoch_loop.val_loop._data_source.dataloader
    fit_loop.epoch_loop.val_loop._last_val_dl_reload_epoch
    fit_loop.epoch_loop.val_loop._restarting
"""


def check_names(trainer: Any) -> None:
    """Check that this version of Lightning has all names that this package uses.

    Raises:
        MissingDependencyError: the version is too old.
        UnsupportedError: a name is missing. The message lists all missing names.
    """
    _check_names(trainer, _NAMES)


def _check_names(trainer: Any, names: str) -> None:
    module = type(trainer).__module__.partition(".")[0]
    _library.check_names(trainer, names, package="lightning" if module == "lightning" else "pytorch-lightning")


# ---------------------------------------------------------------------- making and reading loaders


def swap_sources(trainer: Any, train: Change, validation: Change) -> None:
    """Replace the loaders of a fit: each function gets the Trainer's own, and returns what the Trainer shall use."""
    loop = trainer.fit_loop
    loop._data_source = _Source(loop._data_source, train)
    loop.epoch_loop.val_loop._data_source = _Source(loop.epoch_loop.val_loop._data_source, validation)


def swap_source_of(trainer: Any, stage: str, change: Change) -> None:
    """Do the same for the loaders of `trainer.validate`, `test` or `predict`.

    Raises:
        UnsupportedError: this version of Lightning lacks the names.
    """
    _check_names(trainer, f"{stage}_loop._data_source.dataloader")
    loop = getattr(trainer, f"{stage}_loop")
    loop._data_source = _Source(loop._data_source, change)


def give_sources_back(trainer: Any) -> None:
    """Undo `swap_sources` and `swap_source_of`."""
    loop = trainer.fit_loop
    loops = (loop, loop.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop, trainer.predict_loop)
    for owner in loops:
        if isinstance(getattr(owner, "_data_source", None), _Source):
            owner._data_source = owner._data_source._original


class _Source:
    """Wraps the Trainer's source of loaders, which is the call of `fit`, a module or a datamodule."""

    def __init__(self, source: Any, change: Change) -> None:
        original = source._original if isinstance(source, _Source) else source
        object.__setattr__(self, "_original", original)
        object.__setattr__(self, "_change", change)

    def dataloader(self) -> Any:
        return self._change(self._original.dataloader)

    def __getattr__(self, name: str) -> Any:
        if name == "_original":  # not set yet while this object is being copied
            raise AttributeError(name)
        return getattr(self._original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._original, name, value)


def train_reader(trainer: Any) -> Any:
    """Return the Trainer's reader of the train loaders, with `iterables` and `iterators`; None before it starts."""
    combined = trainer.fit_loop._combined_loader
    return None if combined is None else combined._iterator


def restore_consumed(trainer: Any, consumed: Sequence[bool]) -> None:
    """Set which loaders have ended in this epoch, for the mode `max_size_cycle`."""
    iterator = trainer.fit_loop._combined_loader._iterator
    if hasattr(iterator, "_consumed"):
        pairs = zip(iterator._consumed, consumed, strict=True)  # reading ahead may have found an end already
        iterator._consumed = [now or before for now, before in pairs]


def restart_fetching(trainer: Any) -> None:
    """Discard batches that were fetched ahead, and create new iterators of the loaders."""
    iter(trainer.fit_loop._data_fetcher)


def gives_iterator(trainer: Any) -> bool:
    """Return whether `training_step` fetches batches itself, through its argument `dataloader_iter`."""
    return hasattr(trainer.fit_loop._data_fetcher, "iterator_wrapper")


def set_lengths(trainer: Any, lengths: Sequence[float]) -> None:
    """Set the lengths of this epoch in the Trainer."""
    loop, limit = trainer.fit_loop, trainer.limit_train_batches
    loader = loop._combined_loader
    limits = [length if length == float("inf") else int(length * limit) for length in lengths]
    if isinstance(limit, int):
        limits = [min(length, limit) for length in lengths]
    loader.limits = limits
    with suppress(TypeError, NotImplementedError):
        loop.max_batches = len(iter(loader))  # the old iterator has the old limits
    interval = trainer.val_check_interval
    if isinstance(interval, float) and loop.max_batches != float("inf") and trainer.val_check_batch is not None:
        trainer.val_check_batch = max(1, int(loop.max_batches * interval))


_RELOADED = {"train": "_last_train_dl_reload_epoch", "validation": "_last_val_dl_reload_epoch"}


def reloaded_at(trainer: Any, loop: Loop) -> int | None:
    """Return the epoch from which `reload_dataloaders_every_n_epochs` counts; None if it does not count yet."""
    epoch = getattr(_loop_of(trainer, loop), _RELOADED[loop])
    return None if epoch == float("-inf") else int(epoch)


def note_reload(trainer: Any, loop: Loop, epoch: int | None) -> None:
    """Set the epoch from which `reload_dataloaders_every_n_epochs` counts."""
    setattr(_loop_of(trainer, loop), _RELOADED[loop], float("-inf") if epoch is None else epoch)


def is_reload_due(trainer: Any, epoch: int | None) -> bool:
    """Return whether Lightning reloads the loaders now, if it counts from the given epoch."""
    every = trainer.reload_dataloaders_every_n_epochs
    return bool(every) and (epoch is None or trainer.current_epoch - epoch >= every)


def forget_loaders(trainer: Any, loop: Loop) -> None:
    """Make the Trainer ask for the loaders of a loop again when it next needs them."""
    _loop_of(trainer, loop)._combined_loader = None


def _loop_of(trainer: Any, loop: Loop) -> Any:
    return trainer.fit_loop if loop == "train" else trainer.fit_loop.epoch_loop.val_loop


# ---------------------------------------------------------------------- the Trainer's position and settings


def counters(trainer: Any) -> tuple[Any, Any]:
    """Return the Trainer's epoch and batch counters."""
    return trainer.fit_loop.epoch_progress, trainer.fit_loop.epoch_loop.batch_progress


@contextmanager
def counters_at(trainer: Any, epoch: int, step: int) -> Iterator[None]:
    """Temporarily set `current_epoch` and `global_step`, which code that makes loaders may read."""
    epochs, loop = trainer.fit_loop.epoch_progress.current, trainer.fit_loop.epoch_loop
    steps = [
        loop.automatic_optimization.optim_progress.optimizer.step.total,
        loop.manual_optimization.optim_step_progress.total,
    ]
    now = epochs.processed, epochs.completed, [one.completed for one in steps]
    epochs.processed = epochs.completed = epoch
    for one in steps:
        one.completed = step
    try:
        yield
    finally:
        epochs.processed, epochs.completed = now[:2]
        for one, completed in zip(steps, now[2], strict=True):
            one.completed = completed


def steps_logged(trainer: Any) -> int:
    """Count the optimizer steps after which everything was done, including validation."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)


def logs_now(trainer: Any) -> bool:
    """Return whether the Trainer logs after this batch (`log_every_n_steps`)."""
    return bool(trainer._logger_connector.should_update_logs)


def is_accumulating(trainer: Any) -> bool:
    """Return whether the gradients of the last batch are waiting for more batches."""
    return bool(trainer.fit_loop.epoch_loop._should_accumulate())


def is_over(trainer: Any) -> bool:
    """Return whether the current epoch has no batches left."""
    return bool(trainer.fit_loop.epoch_loop._num_ready_batches_reached())


def is_beginning(trainer: Any) -> bool:
    """Return whether the hooks of an epoch's start are running. A resumed run calls all of them again."""
    progress = trainer.fit_loop.epoch_progress.current
    return bool(progress.started < progress.ready)


def is_ending(trainer: Any) -> bool:
    """Return whether the run ends here, at the end of an epoch or earlier."""
    stops = trainer.should_stop and trainer.fit_loop._can_stop_early
    return bool(stops) or 0 <= trainer.max_steps <= trainer.global_step


def is_restoring(trainer: Any) -> bool:
    """Return whether a checkpoint is only partly restored: for example, without the optimizer's state yet."""
    return bool(trainer._checkpoint_connector._loaded_checkpoint)


def partial_metrics(trainer: Any) -> list[str]:
    """Return the training metrics that are averaged over the epoch. Lightning does not save partial averages."""
    results = trainer.fit_loop.epoch_loop._results
    return sorted({metric.meta.name for metric in results.values() if metric.meta.on_epoch})


def callback_states(trainer: Any) -> dict[str, Any]:
    """Copy the states of all callbacks, as in a checkpoint."""
    states = {callback.state_key: callback.state_dict() for callback in trainer.callbacks}
    return {key: deepcopy(state) for key, state in states.items() if state}


def has_callback(trainer: Any, name: str) -> bool:
    """Return whether the Trainer has a callback of Lightning's class with this name, or of a subclass."""
    return any(base.__name__ == name for callback in trainer.callbacks for base in type(callback).__mro__)


def is_interrupted(trainer: Any) -> bool:
    """Return whether an exception is ending the run. Other ranks may never answer then."""
    return bool(trainer.interrupted)


def call_after_interruption(trainer: Any, function: Callable[[], None]) -> None:
    """Call a function after an exception has ended the run. Lightning calls no `teardown` of a callback then."""

    def teardown() -> None:
        del trainer._teardown
        try:
            trainer._teardown()
        finally:
            if is_interrupted(trainer):
                function()

    trainer._teardown = teardown


def at_epoch_end(trainer: Any) -> bool:
    """Return whether the epoch's batches are done, but not the work at its end."""
    progress = trainer.fit_loop.epoch_progress.current
    return bool(progress.completed < progress.processed)


def requeue_handler(trainer: Any) -> tuple[int, Callable[..., Any]] | None:
    """Return SLURM's requeue signal and Lightning's handler for it; None without SLURM."""
    saves = trainer._signal_connector._slurm_sigusr_handler_fn
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        if saves in getattr(handler, "signal_handlers", ()):
            return number, handler
    return None


def sigterm_path(trainer: Any) -> str:
    """Return the path of a checkpoint that is saved on SIGTERM. `ckpt_path="last"` finds it."""
    folders = [getattr(callback, "dirpath", None) for callback in trainer.checkpoint_callbacks]
    return f"{next(filter(None, folders), trainer.default_root_dir)}/last-sigterm.ckpt"  # it may be a URL


def is_sigterm(exception: BaseException) -> bool:
    """Return whether this is the exception that Lightning raises on SIGTERM."""
    return type(exception).__name__ == "SIGTERMException"


def metrics(trainer: Any) -> dict[str, Any]:
    """Return the logged metrics, which schedulers, early stopping and checkpointing read."""
    return dict(trainer.callback_metrics)


def restore_metrics(trainer: Any, values: Mapping[str, Any]) -> None:
    """Restore logged metrics."""
    trainer._logger_connector._callback_metrics.update(values)


# ---------------------------------------------------------------------- resuming


def call_at_entry(trainer: Any, enter: Callable[[], None]) -> None:
    """Call a function instead of the Trainer's own preparation of a resumed run's first epoch.

    The Trainer guesses from its counters how much was done before the checkpoint. It guesses wrong if a validation or
    the end of an epoch was due.
    """
    loop = trainer.fit_loop.epoch_loop

    def reset() -> None:
        del loop.reset
        enter()

    loop.reset = reset


def begin_epoch_again(trainer: Any) -> None:
    """Start the next epoch at its first batch, although a checkpoint was loaded."""
    for loop in _loops(trainer):
        loop._restarting = False


def finish_batch(trainer: Any, *, is_last: bool, pending: bool, validated: bool) -> None:
    """Continue in the middle of an epoch: do the work between a batch and the next one.

    Args:
        trainer: the Trainer.
        is_last: the batch was the last one of the epoch.
        pending: that work is not done yet. It includes a validation if one is due.
        validated: the validation is already done.
    """
    loop = trainer.fit_loop.epoch_loop
    loop.batch_progress.is_last_batch = is_last
    begin_epoch_again(trainer)
    if pending:
        loop._skip_next_val = validated
        loop.on_advance_end(trainer.fit_loop._data_fetcher)


def finish_epoch(trainer: Any) -> None:
    """Step the schedulers that wait for the previous epoch's metrics (`ReduceLROnPlateau`)."""
    loop = trainer.fit_loop
    loop.epoch_progress.current.completed -= 1
    try:
        loop.epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
    finally:
        loop.epoch_progress.current.completed += 1


def _loops(trainer: Any) -> Iterator[Any]:
    loop = trainer.fit_loop
    yield from (loop, loop.epoch_loop, loop.epoch_loop.val_loop)
