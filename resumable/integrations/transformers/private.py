"""All undocumented parts of the Trainer that this package uses, in one place.

When a Trainer is prepared, `check_names` rejects versions that are too old, and names that a newer one has removed.
`tests/hf_transformers/trainer_cases.py` finds changes of behaviour.
"""

from __future__ import annotations

import contextlib
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable.integrations import _library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from os import PathLike

__all__ = [
    "STATE_FILE",
    "begin_counts",
    "begin_logs",
    "callbacks",
    "check_names",
    "checkpoints_in",
    "counts",
    "load_generators",
    "logged",
    "replace",
    "skipping_by",
    "trl_name",
    "unprepared",
]

STATE_FILE = "trainer_state.json"  # the last file of a checkpoint

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_NAMES = """
    _init_training_state
    _inner_training_loop
    _load_rng_state
    _save_checkpoint
    _save_rng_state
    accelerator.non_blocking
    accelerator.prepare
    callback_handler.callbacks
    get_train_dataloader
    train
"""
_NAMES_OF_TRL = "_metrics _total_train_tokens"


def check_names(trainer: Any) -> None:
    """Check that this version of transformers has all names that this package uses.

    Raises:
        MissingDependencyError: the version of transformers or TRL is too old.
        UnsupportedError: a name is missing. The message lists all missing names.
    """
    _library.check_names(trainer, _NAMES, package="transformers")
    _library.check_names(_module(), "skip_first_batches", package="transformers")
    if trl_name(trainer) is not None:
        _library.check_names(trainer, _NAMES_OF_TRL, package="trl")


def replace(trainer: Any, name: str, function: Callable[..., Any]) -> None:
    """Replace a method of this Trainer with a function. The function's first argument is the original method."""
    setattr(trainer, name, partial(function, getattr(trainer, name)))


def callbacks(trainer: Any) -> list[Any]:
    """Return the callbacks in the order of their calls."""
    found: list[Any] = trainer.callback_handler.callbacks
    return found


def logged(trainer: Any) -> tuple[float, int]:
    """Return the sum of this rank's losses since the last log entry, and the step of that entry."""
    return float(trainer._tr_loss.item()), int(trainer._globalstep_last_logged)


def begin_logs(trainer: Any, loss: float, mean: float, step: int) -> None:
    """Restore the sum of the losses since the last log entry. The Trainer alone would start at zero.

    The final `train_loss` is the mean over the steps of this launch. So the sum's mean over the ranks, which the next
    log entry adds, is subtracted from it.
    """
    trainer._tr_loss.fill_(loss)
    trainer._total_loss_scalar = -mean
    trainer._globalstep_last_logged = step


def trl_name(trainer: Any) -> str | None:
    """Return the name of the TRL class that a Trainer has or inherits from; None for other Trainers."""
    kinds = type(trainer).__mro__
    return next((kind.__name__ for kind in kinds if kind.__module__.partition(".")[0] == "trl"), None)


def counts(trainer: Any) -> dict[str, Any] | None:
    """Return the metrics for a TRL Trainer's next log entry, and its token count; None for other Trainers."""
    if trl_name(trainer) is None:
        return None
    return {"metrics": dict(trainer._metrics["train"]), "tokens": trainer._total_train_tokens}


def begin_counts(trainer: Any, found: Mapping[str, Any]) -> None:
    """Restore the result of `counts`. TRL alone would start at zero."""
    metrics = trainer._metrics["train"]
    metrics.clear()
    for name, values in found["metrics"].items():
        metrics[name].extend(values)
    trainer._total_train_tokens = found["tokens"]


def load_generators(trainer: Any, checkpoint: str) -> None:
    """Restore the RNG states of a checkpoint. The Trainer does that at the first batch, but there may be none."""
    trainer._load_rng_state(checkpoint)


def checkpoints_in(folder: str | PathLike[str]) -> list[tuple[int, Path]]:
    """Return the numbers and paths of the Trainer's checkpoints in a folder."""
    root = Path(folder)
    found = (
        [(_CHECKPOINT.fullmatch(path.name), path) for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
    )
    return [(int(match[1]), path) for match, path in found if match]


@contextlib.contextmanager
def unprepared(trainer: Any) -> Iterator[None]:
    """Make `accelerator.prepare` return its arguments unchanged."""
    accelerator = trainer.accelerator
    accelerator.prepare = lambda *things, **_: things if len(things) > 1 else things[0]
    try:
        yield
    finally:
        del accelerator.prepare


@contextlib.contextmanager
def skipping_by(skip: Callable[[Any, int, Callable[..., Any]], Any]) -> Iterator[None]:
    """Replace the Trainer's `skip_first_batches`. The function gets a loader, a count and the original function."""
    module = _module()
    original = module.skip_first_batches
    module.skip_first_batches = lambda loader, count=0: skip(loader, count, original)
    try:
        yield
    finally:
        module.skip_first_batches = original


def _module() -> Any:
    import transformers.trainer  # noqa: PLC0415  # takes seconds

    return transformers.trainer
