"""All undocumented parts of Accelerate that this package uses, in one place.

When a Loader is prepared, `check_names` rejects a version that is too old, and names that a newer one has removed.
"""

from __future__ import annotations

import re
import sys
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable.integrations import _library

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "CUSTOM",
    "begin_loop",
    "call_before_saves",
    "check_names",
    "drop_gradients",
    "end_loop",
    "is_preparing",
    "memory",
    "models",
    "objects",
    "optimizers",
    "save_number",
    "saves_folder",
    "schedulers",
    "set_save_number",
    "watch_backward",
    "writes",
]

_CHECKS = {"prepare", "_prepare_one", "<genexpr>"}  # functions of Accelerate that check the class of their arguments
CUSTOM = re.compile(r"custom_checkpoint_\d+\.pkl")  # file names of registered objects

_NAMES = """
    _custom_objects
    _dataloaders
    _models
    _optimizers
    _schedulers
    gradient_state._add_dataloader
    gradient_state._remove_dataloader
    backward
    optimizer_step_was_skipped
    project_configuration.iteration
    project_configuration.save_on_each_node
    register_save_state_pre_hook
    scaler
    step
    sync_gradients
"""


def check_names(accelerator: Any) -> None:
    """Check that this version of Accelerate has all names that this package uses.

    Raises:
        MissingDependencyError: the version is too old.
        UnsupportedError: a name is missing. The message lists all missing names.
    """
    _library.check_names(accelerator, _NAMES, package="accelerate")


def is_preparing(*, depth: int) -> bool:
    """Return whether `Accelerator.prepare` is asking for the class of an object.

    This is the only thing that `prepare` does with every object. It calls nothing, and returns an object unchanged that
    is not a model, optimizer, scheduler or DataLoader. So only the caller's frame shows that `prepare` was called. A
    Loader uses this only to raise an error.

    Args:
        depth: number of frames between this call and the code that asks for the class.
    """
    frame = sys._getframe(depth)  # documented, for CPython and PyPy
    return frame.f_globals.get("__name__") == "accelerate.accelerator" and frame.f_code.co_name in _CHECKS


def objects(accelerator: Any) -> Sequence[Any]:
    """Return the objects that were registered for `save_state`, in the order of saving and loading."""
    found: Sequence[Any] = accelerator._custom_objects
    return found


def models(accelerator: Any) -> Sequence[Any]:
    """Return the prepared models."""
    found: Sequence[Any] = accelerator._models
    return found


def schedulers(accelerator: Any) -> Sequence[Any]:
    """Return the prepared schedulers."""
    found: Sequence[Any] = accelerator._schedulers
    return found


def optimizers(accelerator: Any) -> Sequence[Any]:
    """Return the optimizers inside the prepared optimizers."""
    return [optimizer.optimizer for optimizer in accelerator._optimizers]


def drop_gradients(accelerator: Any) -> None:
    """Drop the gradients of batches that will be trained on again."""
    accelerator.sync_gradients = True  # zero_grad() does nothing otherwise
    for optimizer in accelerator._optimizers:
        optimizer.zero_grad()


def begin_loop(accelerator: Any, loader: Any) -> None:
    """Let a loader report its epoch's end to the accelerator from now on."""
    accelerator.gradient_state._add_dataloader(loader)


def end_loop(accelerator: Any, loader: Any) -> None:
    """Let the loader of the surrounding loop report again instead of this one."""
    accelerator.gradient_state._remove_dataloader(loader)


def memory(accelerator: Any) -> object:
    """Return an object that `free_memory` replaces with a new one."""
    found: object = accelerator._dataloaders
    return found


def watch_backward(accelerator: Any, function: Callable[[], None]) -> None:
    """Call a function after each `accelerator.backward`."""
    backward = accelerator.backward

    @wraps(backward)
    def watched(*arguments: Any, **options: Any) -> Any:
        result = backward(*arguments, **options)
        function()
        return result

    accelerator.backward = watched


def save_number(accelerator: Any) -> int:
    """Return the number of the checkpoint that is being saved, or of the next one; 0 without automatic naming."""
    settings = accelerator.project_configuration
    return int(settings.iteration) if settings.automatic_checkpoint_naming else 0


def set_save_number(accelerator: Any, number: int) -> None:
    """Set the number of the next checkpoint."""
    accelerator.project_configuration.iteration = number


def saves_folder(accelerator: Any) -> Path | None:
    """Return the folder in which `automatic_checkpoint_naming` puts checkpoints; None without it."""
    if not accelerator.project_configuration.automatic_checkpoint_naming:
        return None
    return Path(accelerator.project_dir, "checkpoints")


def writes(accelerator: Any) -> bool:
    """Return whether this process writes the files that all ranks share."""
    each_node = accelerator.project_configuration.save_on_each_node
    return bool(accelerator.is_local_main_process if each_node else accelerator.is_main_process)


def call_before_saves(accelerator: Any, function: Callable[[Path], None]) -> None:
    """Call a function with the folder before `save_state` writes anything."""
    accelerator.register_save_state_pre_hook(lambda _models, _weights, folder: function(Path(folder)))
