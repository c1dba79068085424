"""Everything of the Trainer that this package uses and that transformers does not document, in one place.

Read in transformers 5.23 and TRL 1.16. `check_names` says what a newer one has changed, when a Trainer is prepared;
`tests/hf_transformers/trainer_cases.py` what it does in another way.
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
    """Refuse a transformers in which a name is missing that this package relies on.

    Raises:
        UnsupportedError: the message says which ones.
    """
    tried = "version 5.23 of transformers and 1.16 of TRL"
    names = _NAMES if trl_name(trainer) is None else f"{_NAMES} {_NAMES_OF_TRL}"
    _library.check_names(trainer, names, library="transformers, or of TRL,", tried=tried)
    _library.check_names(_module(), "skip_first_batches", library="transformers.trainer", tried=tried)


def replace(trainer: Any, name: str, function: Callable[..., Any]) -> None:
    """Put a function in the place of a method, for this Trainer alone; its first argument is what was there."""
    setattr(trainer, name, partial(function, getattr(trainer, name)))


def callbacks(trainer: Any) -> list[Any]:
    """Return the list of callbacks, in the order in which they are called."""
    found: list[Any] = trainer.callback_handler.callbacks
    return found


def logged(trainer: Any) -> tuple[float, int]:
    """Return the sum of the losses since the last line of the log, on this rank, and the step of that line."""
    return float(trainer._tr_loss.item()), int(trainer._globalstep_last_logged)


def begin_logs(trainer: Any, loss: float, step: int) -> None:
    """Begin with the sum of the losses since a line of the log, as the Trainer itself begins with none."""
    trainer._tr_loss.fill_(loss)
    trainer._globalstep_last_logged = step


def trl_name(trainer: Any) -> str | None:
    """Return the name of TRL's class from which a Trainer is made or inherits; None for any other Trainer."""
    kinds = type(trainer).__mro__
    return next((kind.__name__ for kind in kinds if kind.__module__.partition(".")[0] == "trl"), None)


def counts(trainer: Any) -> dict[str, Any] | None:
    """Return what a Trainer of TRL has counted for the next line of its log, and over the run; None for any other."""
    if trl_name(trainer) is None:
        return None
    return {"metrics": dict(trainer._metrics["train"]), "tokens": trainer._total_train_tokens}


def begin_counts(trainer: Any, found: Mapping[str, Any]) -> None:
    """Go on counting from what `counts` returned, as TRL begins again at nothing."""
    metrics = trainer._metrics["train"]
    metrics.clear()
    for name, values in found["metrics"].items():
        metrics[name].extend(values)
    trainer._total_train_tokens = found["tokens"]


def load_generators(trainer: Any, checkpoint: str) -> None:
    """Give back the generators of a checkpoint. The Trainer does it at the first batch, which may not come."""
    trainer._load_rng_state(checkpoint)


def checkpoints_in(folder: str | PathLike[str]) -> list[tuple[int, Path]]:
    """Return the numbers and paths of the checkpoints in a folder, as the Trainer finds them."""
    root = Path(folder)
    found = (
        [(_CHECKPOINT.fullmatch(path.name), path) for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
    )
    return [(int(match[1]), path) for match, path in found if match]


@contextlib.contextmanager
def unprepared(trainer: Any) -> Iterator[None]:
    """Let `accelerator.prepare` give DataLoaders back as they are."""
    accelerator = trainer.accelerator
    accelerator.prepare = lambda *things, **_: things if len(things) > 1 else things[0]
    try:
        yield
    finally:
        del accelerator.prepare


@contextlib.contextmanager
def skipping_by(skip: Callable[[Any, int, Callable[..., Any]], Any]) -> Iterator[None]:
    """Let a function answer where the Trainer skips the batches of before a checkpoint; it is given the original."""
    module = _module()
    original = module.skip_first_batches
    module.skip_first_batches = lambda loader, count=0: skip(loader, count, original)
    try:
        yield
    finally:
        module.skip_first_batches = original


def _module() -> Any:
    import transformers.trainer  # noqa: PLC0415  # only who uses it pays for it

    return transformers.trainer
