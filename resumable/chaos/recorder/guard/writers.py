"""Wraps the writers that announce nothing to Python, as soon as their modules are imported.

It also reports checkpoints that are saved and loaded to `GUARD.saves`.
"""

from __future__ import annotations

import functools
import os
import posix
import sys
from typing import TYPE_CHECKING, Any

from resumable.chaos.recorder.guard.files import GUARD, WRITING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["install", "is_remote", "refuse_remote"]


def install() -> None:
    """Guard the modules that are already imported, and those that are imported later."""
    os.open = _make_open()
    for name in ("mkfifo", "mknod"):
        setattr(os, name, _checked(getattr(posix, name), 0))
    for name, guard in _MODULES.items():
        if name in sys.modules:
            guard(sys.modules[name])
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds modules like the other finders, and guards them after they have run."""

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


def _follow(loader: Any, guard: Callable[[Any], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        guard(module)

    loader.exec_module = exec_module


def _make_open() -> Any:
    """Return a replacement for `os.open`, which does not announce the directory of a relative path."""

    @functools.wraps(posix.open)
    def call(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if GUARD.active and dir_fd is not None and flags & WRITING and not GUARD.local.trusted:
            GUARD.check(path, dir_fd, follow=not flags & posix.O_NOFOLLOW, flags=flags)
            with GUARD.trusted():
                return posix.open(path, flags, mode, dir_fd=dir_fd)
        return posix.open(path, flags, mode, dir_fd=dir_fd)

    call.__module__ = "os"  # where pickle, for example, finds it
    for supported in (os.supports_dir_fd, os.supports_fd):
        if posix.open in supported:
            supported.add(call)
    return call


def _checked(
    function: Any, number: int, name: str = "", *, mode: Callable[[dict[Any, Any]], bool] | None = None
) -> Any:
    """Return a function that checks the path that it writes.

    Args:
        function: writes in C, C++ or Rust.
        number: of the parameter with the path.
        name: of this parameter.
        mode: whether a call writes, from its arguments by number and name; None if each does.
    """

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        given: dict[Any, Any] = {**dict(enumerate(args)), **options}
        path = given.get(name, given.get(number))
        if GUARD.active and isinstance(path, (str, os.PathLike)) and (mode is None or mode(given)):
            GUARD.check(path, flags=posix.O_TRUNC if mode is None else 0, cached=False)
            GUARD.opened(path, posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC)
        return function(*args, **options)

    return call


def _guard_torch(torch: Any) -> None:
    save, load = told_of(_checked(torch.save, 1, "f"), "obj", "f", torn=True), _told_of_load(torch.load)
    for module in (torch, torch.serialization):
        module.save, module.load = save, load
    torch.jit.save, torch.export.save = _checked(torch.jit.save, 1, "f"), _checked(torch.export.save, 1, "f")
    for kind in (torch.jit.ScriptModule, torch.jit._script.RecursiveScriptModule):  # noqa: SLF001  # both have a `save`
        if "save" in vars(kind):
            kind.save = _checked(kind.save, 1, "f")


def _guard_safetensors(safetensors: Any) -> None:
    content = "tensors" if safetensors.__name__.endswith("torch") else "tensor_dict"
    safetensors.save_file = told_of(_checked(safetensors.save_file, 1, "filename"), content, "filename")


def _guard_lightning(cloud_io: Any) -> None:
    """Report the final name of a checkpoint of Lightning, which is written through memory and a temporary file."""
    cloud_io._atomic_save = told_of(cloud_io._atomic_save, "checkpoint", "filepath")  # noqa: SLF001  # no public one


def _guard_h5py(files: Any) -> None:
    files.File.__init__ = _checked(
        files.File.__init__, 1, "name", mode=lambda given: given.get("mode", given.get(2, "r")) != "r"
    )


def _guard_parquet(parquet: Any) -> None:
    parquet.ParquetWriter.__init__ = _checked(parquet.ParquetWriter.__init__, 1, "where")


def _guard_opencv(cv2: Any) -> None:
    cv2.imwrite = _checked(cv2.imwrite, 0, "filename")


# Reports the content and the path of a checkpoint to `GUARD.saves`, if there is one.


def told_of(function: Any, content: str, path: str, *, torn: bool = False) -> Any:
    """Report each call of a function that writes a checkpoint, once it is written.

    Args:
        function: writes the checkpoint; nested calls of such functions are not reported.
        content: name of its first parameter.
        path: name of its second one: a path, or an open file.
        torn: whether it writes the file directly under its final name, so a kill can leave half of it.
    """

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if GUARD.saves is None or GUARD.local.saving:
            return function(*args, **options)
        GUARD.local.saving += 1
        try:
            result = function(*args, **options)
        finally:
            GUARD.local.saving -= 1
        given = dict(zip((content, path), args, strict=False)) | options
        GUARD.saves.saved(given.get(content), given.get(path), torn=torn)
        return result

    return call


def _told_of_load(function: Any) -> Any:
    """Report each call of a function that reads a checkpoint from its first argument."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        given = args[0] if args else options.get("f")
        name = given if isinstance(given, (str, os.PathLike)) else getattr(given, "name", None)
        path = name if isinstance(name, (str, os.PathLike)) else None
        if GUARD.active and path is not None and not GUARD.holds(os.path.realpath(path)):
            GUARD.tell("read", os.path.realpath(path))
        elif GUARD.active and path is not None and path is given:
            GUARD.opened(path, posix.O_RDONLY)
        if GUARD.saves is not None:
            GUARD.saves.loaded(path, result)
        return result

    return call


# Remote filesystems of fsspec: writing to them ends the process.

# Local protocols, and those that read and write through another filesystem.
_HERE = {
    *("asynclocal", "blockcache", "cached", "data", "dir", "file", "filecache", "generic", "libarchive", "local"),
    *("memory", "reference", "simplecache", "tar", "zip"),
}
_REMOTE_WRITES = (
    *("copy", "cp", "cp_file", "delete", "makedir", "makedirs", "mkdir", "mkdirs", "move", "mv", "pipe", "pipe_file"),
    *("put", "put_file", "rename", "rm", "rm_file", "rmdir", "touch", "upload", "write_bytes", "write_text"),
    *("_cp_file", "_makedirs", "_mkdir", "_pipe_file", "_put_file", "_rm", "_rm_file", "_rmdir"),
)


def is_remote(filesystem: Any) -> bool:
    """Return whether fsspec knows a filesystem to be remote; a script's custom filesystems are not judged."""
    from fsspec.registry import known_implementations  # noqa: PLC0415  # already imported if there is a filesystem

    names = (filesystem.protocol,) if isinstance(filesystem.protocol, str) else tuple(filesystem.protocol)
    return any(name in known_implementations and name not in _HERE for name in names)


def refuse_remote(what: str) -> None:
    """End this process before it writes to a remote path."""
    GUARD.refuse(
        f"the command would have written to {what}, which is remote.\nEach launch would have changed the checkpoints "
        "there. For this test, use a relative path, which leads into the case, or {dir}."
    )


def _guard_fsspec(spec: Any) -> None:
    """Guard every filesystem that is created from now on."""
    kind = type(spec.AbstractFileSystem)
    make = kind.__call__

    @functools.wraps(make)
    def call(cls: Any, *args: Any, **options: Any) -> Any:
        made = make(cls, *args, **options)
        if GUARD.active and is_remote(made) and "_looked_after" not in vars(made):
            _guard_remote(made)
        return made

    kind.__call__ = call


def _guard_remote(filesystem: Any) -> None:
    filesystem._looked_after = True  # noqa: SLF001  # our own attribute
    name = filesystem.protocol if isinstance(filesystem.protocol, str) else filesystem.protocol[0]
    for method in _REMOTE_WRITES:
        if hasattr(filesystem, method):
            setattr(filesystem, method, functools.partial(_refuse_path, name))
    original = filesystem.open

    @functools.wraps(original)
    def open_(path: Any, mode: str = "rb", *args: Any, **options: Any) -> Any:
        if set(mode) & set("wax+"):
            _refuse_path(name, path)
        return original(path, mode, *args, **options)

    filesystem.open = open_


def _refuse_path(protocol: str, path: Any = "", *_: Any, **__: Any) -> None:
    refuse_remote(f"{protocol}://{str(path).removeprefix(f'{protocol}://')}")


_MODULES: dict[str, Callable[[Any], None]] = {
    "torch": _guard_torch,
    "fsspec.spec": _guard_fsspec,
    "lightning.fabric.utilities.cloud_io": _guard_lightning,
    "lightning_fabric.utilities.cloud_io": _guard_lightning,
    "safetensors.numpy": _guard_safetensors,
    "safetensors.torch": _guard_safetensors,
    "h5py._hl.files": _guard_h5py,
    "pyarrow.parquet.core": _guard_parquet,
    "cv2": _guard_opencv,
}
