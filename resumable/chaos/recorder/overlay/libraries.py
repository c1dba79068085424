"""Replaces functions of libraries that bypass Python's own files, as soon as their modules are imported."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

from resumable.chaos.recorder.overlay.changes import open_for_writing
from resumable.chaos.recorder.overlay.inplace import tell_written
from resumable.chaos.recorder.overlay.remote import look_after as look_after_fsspec
from resumable.chaos.recorder.overlay.saving import told_of, told_of_load
from resumable.chaos.recorder.overlay.state import STATE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["install"]


def install() -> None:
    """Patch the modules that are already imported, and those that are imported later."""
    for name, look_after in _MODULES.items():
        if name in sys.modules:
            look_after(sys.modules[name])
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds modules like the other finders, and patches them after they have run."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _MODULES:
            return None
        others = (finder for finder in sys.meta_path if not isinstance(finder, _Finder))
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((found for found in specs if found is not None), None)
        if spec is not None and spec.loader is not None:
            _follow(spec.loader, _MODULES[name])
        return spec


def _follow(loader: Any, look_after: Callable[[ModuleType], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        look_after(module)

    loader.exec_module = exec_module


def _look_after_torch(torch: Any) -> None:
    """Redirect files that PyTorch writes in C++ to the same paths as Python's files."""
    save, load = told_of(_saving(torch.save), "obj", "f", torn=True), told_of_load(_loading(torch.load))
    for module in (torch, torch.serialization):
        module.save, module.load = save, load
    torch.jit.save, torch.jit.load = _saving(torch.jit.save), _loading(torch.jit.load)
    for kind in (torch.jit.ScriptModule, torch.jit._script.RecursiveScriptModule):  # noqa: SLF001  # both have a `save`
        if "save" in vars(kind):
            kind.save = _saving(kind.save)
    torch.export.save, torch.export.load = _saving(torch.export.save), _loading(torch.export.load)


def _saving(function: Any) -> Any:
    def find(path: Any) -> str:
        assert STATE.view is not None
        real = STATE.view.find(path).real
        if not STATE.view.exempt.temporary.covers(real):
            STATE.view.exempt.checkpoints.add(real)
        tell_written(STATE.view, real, os.O_CREAT | os.O_TRUNC)
        return open_for_writing(STATE.view, real, os.O_CREAT | os.O_TRUNC)

    return _with_path(function, 1, find)


def _loading(function: Any) -> Any:
    def find(path: Any) -> str:
        assert STATE.view is not None
        real = STATE.view.find(path).real
        if STATE.view.is_the_machines(real):
            STATE.tell("read", real)
        return STATE.view.shown(real)

    return _with_path(function, 0, find)


def _with_path(function: Any, number: int, find: Callable[[Any], str]) -> Any:
    import inspect  # noqa: PLC0415  # slow, and needed only with torch

    name = list(inspect.signature(function).parameters)[number]

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        given = options.get(name) if name in options else args[number] if len(args) > number else None
        if STATE.view is None or not isinstance(given, (str, os.PathLike)):
            return function(*args, **options)
        found = find(given)
        if name in options:
            return function(*args, **{**options, name: found})
        return function(*args[:number], found, *args[number + 1 :], **options)

    return call


def _look_after_tempfile(tempfile: Any) -> None:
    """Track the files that it creates in its own directory: compilers and sockets need them at their real paths."""
    for name in ("gettempdir", "mkdtemp", "mkstemp", "NamedTemporaryFile", "TemporaryFile"):
        setattr(tempfile, name, _making_temporary(getattr(tempfile, name)))


def _making_temporary(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        STATE.local.temporary += 1
        try:
            return function(*args, **options)
        finally:
            STATE.local.temporary -= 1

    return call


def _look_after_safetensors(safetensors: Any) -> None:
    content = "tensors" if safetensors.__name__.endswith("torch") else "tensor_dict"
    safetensors.save_file = told_of(safetensors.save_file, content, "filename")


def _look_after_lightning(cloud_io: Any) -> None:
    """Track the final name of a checkpoint of Lightning, which is written through memory and a temporary file."""
    cloud_io._atomic_save = told_of(cloud_io._atomic_save, "checkpoint", "filepath")  # noqa: SLF001  # no public one


_MODULES: dict[str, Callable[[Any], None]] = {
    "torch": _look_after_torch,
    "tempfile": _look_after_tempfile,
    "fsspec.spec": look_after_fsspec,
    "lightning.fabric.utilities.cloud_io": _look_after_lightning,
    "lightning_fabric.utilities.cloud_io": _look_after_lightning,
    "safetensors.numpy": _look_after_safetensors,
    "safetensors.torch": _look_after_safetensors,
}
