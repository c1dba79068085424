"""File systems of fsspec that are elsewhere: nothing on them can be redirected, so that writing to them is refused."""

from __future__ import annotations

import functools
from typing import Any

from resumable.chaos.recorder.overlay.state import STATE

__all__ = ["is_remote", "look_after", "refuse_remote"]

# Protocols of this machine and this process, and those that read and write through another file system.
_HERE = {
    *("asynclocal", "blockcache", "cached", "data", "dir", "file", "filecache", "generic", "libarchive", "local"),
    *("memory", "reference", "simplecache", "tar", "zip"),
}
_WRITING = (
    *("copy", "cp", "cp_file", "delete", "makedir", "makedirs", "mkdir", "mkdirs", "move", "mv", "pipe", "pipe_file"),
    *("put", "put_file", "rename", "rm", "rm_file", "rmdir", "touch", "upload", "write_bytes", "write_text"),
    *("_cp_file", "_makedirs", "_mkdir", "_pipe_file", "_put_file", "_rm", "_rm_file", "_rmdir"),
)


def is_remote(filesystem: Any) -> bool:
    """Return whether fsspec knows a file system to be elsewhere; those of a script's own are its own affair."""
    from fsspec.registry import known_implementations  # noqa: PLC0415  # it is imported where there is one

    names = (filesystem.protocol,) if isinstance(filesystem.protocol, str) else tuple(filesystem.protocol)
    return any(name in known_implementations and name not in _HERE for name in names)


def refuse_remote(what: str) -> None:
    """End this process: it would have written to where nothing can be redirected."""
    assert STATE.view is not None
    STATE.refuse(
        f"the command would have written to {what}, which is not on this machine and cannot be redirected.\n"
        f"  the run's directory: {STATE.view.case}\nEach start would have changed the checkpoints that are there. "
        "Give it a relative path, or {dir}, for this test."
    )


def look_after(spec: Any) -> None:
    """See to every file system that is made from now on."""
    kind = type(spec.AbstractFileSystem)
    make = kind.__call__

    @functools.wraps(make)
    def call(cls: Any, *args: Any, **options: Any) -> Any:
        made = make(cls, *args, **options)
        if STATE.view is not None and is_remote(made) and "_looked_after" not in vars(made):
            _guard(made)
        return made

    kind.__call__ = call


def _guard(filesystem: Any) -> None:
    filesystem._looked_after = True  # noqa: SLF001  # our own mark
    name = filesystem.protocol if isinstance(filesystem.protocol, str) else filesystem.protocol[0]
    for method in _WRITING:
        if hasattr(filesystem, method):
            setattr(filesystem, method, functools.partial(_refuse, name))
    original = filesystem.open

    @functools.wraps(original)
    def open_(path: Any, mode: str = "rb", *args: Any, **options: Any) -> Any:
        if set(mode) & set("wax+"):
            _refuse(name, path)
        return original(path, mode, *args, **options)

    filesystem.open = open_


def _refuse(protocol: str, path: Any = "", *_: Any, **__: Any) -> None:
    refuse_remote(f"{protocol}://{str(path).removeprefix(f'{protocol}://')}")
