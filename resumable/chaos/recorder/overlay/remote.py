"""Remote filesystems of fsspec: nothing on them can be redirected, so writing to them ends the process."""

from __future__ import annotations

import functools
from typing import Any

from resumable.chaos.recorder.overlay.state import STATE

__all__ = ["is_remote", "look_after", "refuse_remote"]

# Local protocols, and those that read and write through another filesystem.
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
    """Return whether fsspec knows a filesystem to be remote; a script's custom filesystems are not judged."""
    from fsspec.registry import known_implementations  # noqa: PLC0415  # already imported if there is a filesystem

    names = (filesystem.protocol,) if isinstance(filesystem.protocol, str) else tuple(filesystem.protocol)
    return any(name in known_implementations and name not in _HERE for name in names)


def refuse_remote(what: str) -> None:
    """End this process before it writes to a path that cannot be redirected."""
    assert STATE.view is not None
    STATE.refuse(
        f"the command would have written to {what}, which is remote and cannot be redirected.\n"
        f"  the run's directory: {STATE.view.case}\nEach launch would have changed the checkpoints there. For this "
        "test, use a relative path, or {dir}."
    )


def look_after(spec: Any) -> None:
    """Guard every filesystem that is created from now on."""
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
    filesystem._looked_after = True  # noqa: SLF001  # our own attribute
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
