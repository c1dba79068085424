"""The content of a checkpoint: loading it with torch, and refusing before a save what could not be loaded."""

from __future__ import annotations

import importlib
import io
import pickle
import types
from collections.abc import Mapping
from typing import Any, BinaryIO

from resumable._distribution import pip_install
from resumable.checkpoint.reports import in_one_line
from resumable.errors import CheckpointError, MissingDependencyError, UnsupportedError

__all__ = ["import_torch", "refuse_unloadable", "unpickle"]


def import_torch() -> Any:
    """Import torch, or say how to install it."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        message = (
            f"CheckpointStore writes torch's format, and torch is not installed.\nInstall it: {pip_install('torch')}"
        )
        raise MissingDependencyError(message) from error


def unpickle(root: str, map_location: Any, step: int, file: BinaryIO) -> Any:
    """Give the content of a data file, unless it has a class that is not allowed here."""
    try:
        return import_torch().load(file, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"step {step} in {root} is whole, but `torch.load(weights_only=True)` refuses it here.\n"
            f"  {in_one_line(error)}\n"
            "Allow the class with `torch.serialization.add_safe_globals` as in the run that saved it."
        ) from error


def refuse_unloadable(step: int, content: Any) -> None:
    """Refuse content that `torch.load(weights_only=True)` would refuse, before anything is written."""
    if (error := _trial(content)) is not None:
        if isinstance(error, UnsupportedError):  # a Loader, which says itself what to save instead
            raise CheckpointError(
                f"step {step} was not saved: {_culprit(content, 'content')} is refused: {error}"
            ) from error
        raise CheckpointError(
            f"step {step} was not saved: {_culprit(content, 'content')} cannot be saved so that "
            f"`torch.load(weights_only=True)` accepts it, and the checkpoint could never be loaded.\n"
            f"  {in_one_line(error)}\n"
            "Convert it to numbers, strings, bytes, lists, dicts or tensors, or allow its class with "
            "`torch.serialization.add_safe_globals` in this run and in the one that loads it."
        ) from error


def _trial(content: Any) -> Exception | None:
    """Save and load `content` in memory with empty tensors, and give the error if there is one."""
    try:
        _round_trip(content, types.SimpleNamespace(__name__="pickle", Pickler=_TrialPickler))
    except MissingDependencyError:
        raise
    except Exception as error:  # noqa: BLE001 - pickling runs code of any class; whatever it raises is the finding
        return error
    return None


def _round_trip(content: Any, pickle_module: Any) -> None:
    torch, buffer = import_torch(), io.BytesIO()
    torch.save(content, buffer, pickle_module=pickle_module)
    buffer.seek(0)
    torch.load(buffer, map_location="cpu", weights_only=True)


class _TrialPickler(pickle.Pickler):
    """Writes empty tensors in place of the ordinary ones, and tries the others whole, by themselves."""

    def reducer_override(self, value: Any) -> Any:
        torch = import_torch()
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        ordinary = (
            type(value) in (torch.Tensor, torch.nn.Parameter)
            and value.layout is torch.strided
            and value.device.type in ("cpu", "cuda")
            and not (value.is_quantized or value.is_nested or vars(value))
        )
        if not ordinary:
            _round_trip(value, pickle)
        return torch.empty(0, dtype=value.dtype if ordinary else None).__reduce_ex__(2)


def _culprit(content: Any, path: str) -> str:
    """Find the smallest part of `content` that cannot be loaded back, and give its place and type."""
    parts: Any = enumerate(content) if isinstance(content, list | tuple) else ()
    for key, part in content.items() if isinstance(content, Mapping) else parts:
        if _trial(part) is not None:
            return _culprit(part, f"{path}[{key!r}]")
    return f"{path}, a {type(content).__module__}.{type(content).__qualname__},"
