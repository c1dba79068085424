"""Everything of Accelerate that this package uses and that Accelerate does not document, in one place.

Read in Accelerate 1.15. `check_names` says what a newer one has changed, when a Loader is prepared.
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

_LOOK = {"prepare", "_prepare_one", "<genexpr>"}  # functions of Accelerate that look at the class of what they get
CUSTOM = re.compile(r"custom_checkpoint_\d+\.pkl")  # what registered objects are saved as, and all that is looked for

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
    """Refuse an Accelerate in which a name is missing that this package relies on.

    Raises:
        UnsupportedError: the message says which ones.
    """
    _library.check_names(accelerator, _NAMES, library="Accelerate", tried="version 1.15")


def is_preparing(*, depth: int) -> bool:
    """Return whether `Accelerator.prepare` asks for the class of an object.

    It is the only thing that `prepare` does with every object: what is no model, optimizer, scheduler or DataLoader is
    returned as it is, and nothing is called. It compares the object with what it prepared before, but that may be
    nothing. So only the caller's frame tells; what a Loader does apart from raising an error never depends on it.

    Args:
        depth: how many calls above this one the class is asked for.
    """
    frame = sys._getframe(depth)  # documented, for CPython and PyPy
    return frame.f_globals.get("__name__") == "accelerate.accelerator" and frame.f_code.co_name in _LOOK


def objects(accelerator: Any) -> Sequence[Any]:
    """Return what was registered for `save_state`, in the order in which it is saved and loaded."""
    found: Sequence[Any] = accelerator._custom_objects
    return found


def models(accelerator: Any) -> Sequence[Any]:
    """Return the models that were prepared."""
    found: Sequence[Any] = accelerator._models
    return found


def schedulers(accelerator: Any) -> Sequence[Any]:
    """Return the schedulers that were prepared."""
    found: Sequence[Any] = accelerator._schedulers
    return found


def optimizers(accelerator: Any) -> Sequence[Any]:
    """Return the optimizers that were prepared, as they were before that."""
    return [optimizer.optimizer for optimizer in accelerator._optimizers]


def drop_gradients(accelerator: Any) -> None:
    """Forget the gradients of batches that are trained on again."""
    accelerator.sync_gradients = True  # without it zero_grad() does nothing
    for optimizer in accelerator._optimizers:
        optimizer.zero_grad()


def begin_loop(accelerator: Any, loader: Any) -> None:
    """Let a loader tell the accelerator from now on whether its epoch ends."""
    accelerator.gradient_state._add_dataloader(loader)


def end_loop(accelerator: Any, loader: Any) -> None:
    """Let the loader tell it no longer, and the one around it again."""
    accelerator.gradient_state._remove_dataloader(loader)


def memory(accelerator: Any) -> object:
    """Return something that `free_memory` replaces by something else."""
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
    """Return the number of the checkpoint that is being saved, or the next one, by `automatic_checkpoint_naming`."""
    return int(accelerator.project_configuration.iteration)


def set_save_number(accelerator: Any, number: int) -> None:
    """Let the next checkpoint have this number."""
    accelerator.project_configuration.iteration = number


def saves_folder(accelerator: Any) -> Path | None:
    """Return where `automatic_checkpoint_naming` has its checkpoints; None without it."""
    if not accelerator.project_configuration.automatic_checkpoint_naming:
        return None
    return Path(accelerator.project_dir, "checkpoints")


def writes(accelerator: Any) -> bool:
    """Return whether this process writes what all ranks have in common."""
    each_node = accelerator.project_configuration.save_on_each_node
    return bool(accelerator.is_local_main_process if each_node else accelerator.is_main_process)


def call_before_saves(accelerator: Any, function: Callable[[Path], None]) -> None:
    """Call a function before `save_state` writes anything, with the folder."""
    accelerator.register_save_state_pre_hook(lambda _models, _weights, folder: function(Path(folder)))
