"""Finds the states of loaders in a checkpoint."""

from __future__ import annotations

import json
import pickle
import re
import warnings
from typing import TYPE_CHECKING, Any

from resumable._inspect.states import find_states
from resumable.checkpoint import CheckpointStore
from resumable.checkpoint.saving import import_torch
from resumable.errors import CheckpointNotFoundError, ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["states_in"]

_STEP = re.compile(r"step-(\d+)")
_SHOWN = 3  # names of a folder


def states_in(path: Path) -> dict[str, Any]:
    """Return the states in a checkpoint by their places in it, as Python writes them.

    Args:
        path: a CheckpointStore's folder, of which the newest step is taken; a folder of one of its steps; a file of
            `torch.save`, such as Lightning's; or JSON.

    Raises:
        ConfigurationError: there is no such file, it is of no such kind, or has no state of a Loader.
        CheckpointError: the store's checkpoint cannot be read.
    """
    states = find_states(_read(path))
    found = {"".join(f"[{key!r}]" for key in one.path): one.values for one in states}
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
                f"no step is committed in {path}: {_holds(path)}.\nNothing was verified. Give the folder of a "
                "CheckpointStore, a step of it, or a file."
            )
        return content
    with path.open("rb") as file:
        first = file.read(1)
    if not first:
        raise ConfigurationError(_unreadable(path, "it is empty"))
    return _read_json(path) if first in {b"{", b"["} else _read_torch(path, first)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(_unreadable(path, f"it begins as JSON, and is cut or damaged: {error}")) from error


def _read_torch(path: Path, first: bytes) -> Any:
    if first not in {b"P", b"\x80"}:  # how zip files and pickles begin
        raise ConfigurationError(_unreadable(path, "it is neither JSON nor a file of torch.save"))
    torch = import_torch()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ConfigurationError(
            f"{path} is not loaded: it holds objects of other classes than tensors and plain values, or is no file of "
            "torch.save.\nNothing was verified, as loading such objects may run any code. `resumable inspect` shows "
            "what it holds. Save loader.state_dict() in a file of its own, or with plain values only."
        ) from error
    except Exception as error:  # of whatever torch finds in a file that is none of its own
        raise ConfigurationError(_unreadable(path, "it is cut or damaged, or no file of torch.save")) from error


def _unreadable(path: Path, why: str) -> str:
    return (
        f"{path} cannot be read: {why}.\nNothing was verified. It must be JSON, or a file of torch.save with tensors "
        "and plain values."
    )


def _holds(path: Path) -> str:
    names = sorted(one.name for one in path.iterdir())
    if ".metadata" in names:
        return "it is a distributed checkpoint of torch, which `resumable inspect` shows"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"it holds {', '.join(names[:_SHOWN])}{more}" if names else "it is empty"
