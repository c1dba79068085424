"""Folders that the Trainer wrote: which of them are whole.

The Trainer writes file after file in place, `trainer_state.json` at the end. So a checkpoint is whole where that file
is, and has the Loader's state in it; on several ranks, once all of them have written theirs (`Session.save`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable.errors import CheckpointError, CheckpointNotFoundError
from resumable.integrations.transformers import private
from resumable.integrations.transformers.saved import Saved

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["NAME", "last_whole_checkpoint", "read_saved"]

NAME = "ResumableState"  # the Trainer files states under the name of the callback's class


def last_whole_checkpoint(folder: str | PathLike[str]) -> str | None:
    """Find the newest checkpoint of a prepared Trainer that was written to its end.

    `trainer.train(resume_from_checkpoint=True)` takes it by itself. The Trainer's own `get_last_checkpoint` takes the
    highest number, which a kill within a save leaves without optimizer or state.

    Args:
        folder: the Trainer's `output_dir`.

    Returns:
        The path; None where there is none.
    """
    found = sorted(private.checkpoints_in(folder), reverse=True)
    return next((str(path) for _, path in found if _is_whole(path)), None)


def read_saved(checkpoint: str) -> Saved:
    """Read the Loader's part of a checkpoint.

    Raises:
        CheckpointError: it is not there, not whole, or was saved without a prepared Loader.
        StateFormatError: it is damaged, or of a newer version.
    """
    if not Path(checkpoint).is_dir():
        raise CheckpointNotFoundError(
            f"there is no checkpoint {checkpoint}.\nThe run would begin again. Give the path of one, or True for the "
            "newest one in the Trainer's output_dir."
        )
    values = _read(Path(checkpoint))
    if values is None:
        raise CheckpointError(
            f"{checkpoint} has no {private.STATE_FILE} that can be read: a kill within the save left it so.\n"
            "The run would begin at another batch than the weights. Resume by train(resume_from_checkpoint=True), "
            "which takes the newest whole one, as last_whole_checkpoint(output_dir) does."
        )
    try:
        saved = values["stateful_callbacks"][NAME]["attributes"]["saved"]
    except (KeyError, TypeError):
        raise CheckpointError(
            f"{checkpoint} was saved by a Trainer that was not prepared: it does not say where its data stood.\n"
            "Augmentations and order would be others than before. Resume it without prepare() once more, or begin a "
            "new run, whose checkpoints have the place."
        ) from None
    return Saved.from_dict(saved)


def _read(checkpoint: Path) -> Any:
    try:
        return json.loads((checkpoint / private.STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _is_whole(checkpoint: Path) -> bool:
    values = _read(checkpoint)
    callbacks = values.get("stateful_callbacks") if isinstance(values, dict) else None
    return isinstance(callbacks, dict) and bool(callbacks.get(NAME, {}).get("attributes"))
