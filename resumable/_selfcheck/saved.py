"""Finds the states of loaders in a checkpoint."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from resumable.checkpoint import CheckpointStore
from resumable.checkpoint.content import import_torch
from resumable.errors import CheckpointNotFoundError, ConfigurationError, ResumableError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["states_in"]

_STEP = re.compile(r"step-(\d+)")
_DEEPEST = 12


def states_in(path: Path) -> dict[str, Any]:
    """Return the states in a checkpoint by their places in it, as Python writes them.

    Args:
        path: a CheckpointStore's folder, of which the newest step is taken; a folder of one of its steps; a file of
            `torch.save`, such as Lightning's; or JSON.

    Raises:
        ConfigurationError: there is no such file, it is of no such kind, or has no state of a Loader.
        CheckpointError: the store's checkpoint cannot be read.
    """
    found: dict[str, Any] = {}
    _find(_read(path), "", 0, found)
    if not found:
        raise ConfigurationError(
            f"no state of a Loader is in {path}.\nNothing was verified. It is what loader.state_dict() returns: save "
            "it with the model."
        )
    return found


def _read(path: Path) -> Any:
    if not path.exists():
        raise ConfigurationError(f"there is no checkpoint {path}.\nNothing was verified. Give a file or a folder.")
    if path.is_dir():
        step = _STEP.fullmatch(path.resolve().name)
        if step is not None:
            return CheckpointStore(path.resolve().parent).load(int(step[1]))
        if (content := CheckpointStore(path).latest()) is None:
            raise CheckpointNotFoundError(
                f"no step is committed in {path}.\nNothing was verified. Give the folder of a CheckpointStore, a step "
                "of it, or a file."
            )
        return content
    try:
        with path.open("rb") as file:
            is_json = file.read(1) in {b"{", b"["}
        if is_json:
            return json.loads(path.read_text(encoding="utf-8"))
        return import_torch().load(path, map_location="cpu", weights_only=True)
    except ResumableError:
        raise
    except Exception as error:  # of whatever torch finds in a file that is none of its own
        first = str(error).strip().partition("\n")[0][:200]
        raise ConfigurationError(
            f"{path} cannot be read: {first}\nNothing was verified. It must be JSON, or what "
            "torch.load(weights_only=True) accepts."
        ) from error


def _find(value: Any, where: str, deep: int, found: dict[str, Any]) -> None:
    if deep > _DEEPEST:
        return
    if isinstance(value, dict):
        if type(value.get("format")) is int and "cursor" in value:
            found[where] = value
            return
        for key, inner in value.items():
            _find(inner, f"{where}[{key!r}]", deep + 1, found)
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            _find(inner, f"{where}[{number}]", deep + 1, found)
