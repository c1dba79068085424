"""Replacements of the functions through which Python programs access files; each resolves the path first.

Each keeps its name, its arguments and its errors. A path that is not redirected is passed on unchanged.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import posix
from typing import TYPE_CHECKING, Any

from resumable.chaos.recorder.overlay.changes import change, remove, remove_dir
from resumable.chaos.recorder.overlay.errors import see
from resumable.chaos.recorder.overlay.folders import make_chdir, make_listdir, make_scandir
from resumable.chaos.recorder.overlay.judged import as_given, create_or_keep
from resumable.chaos.recorder.overlay.opening import make_builtin_open, make_open
from resumable.chaos.recorder.overlay.pairs import make_link, make_rename, make_symlink
from resumable.chaos.recorder.overlay.state import STATE

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable.chaos.recorder.overlay.view import View

__all__ = ["install"]

_SETS = (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids)


def install() -> None:
    """Replace them in `os`, `io` and `builtins`."""
    for name in ("stat", "statvfs", "getxattr", "listxattr", "pathconf"):
        _put(name, _redirect(name, see))
    for name in ("lstat", "readlink"):
        _put(name, _redirect(name, see, follow=False))
    for name in ("truncate", "chmod", "chown", "utime", "setxattr", "removexattr", "chflags"):
        _put(name, _redirect(name, change))
    for name in ("lchown", "lchmod", "lchflags"):
        _put(name, _redirect(name, change, follow=False))
    for name in ("mkdir", "mkfifo", "mknod"):
        _put(name, _redirect(name, create_or_keep, follow=False))
    for name in ("unlink", "remove"):
        _put(name, _redirect(name, remove, follow=False))
    _put("rmdir", _redirect("rmdir", remove_dir, follow=False))
    for name, function in _OTHERS.items():
        _put(name, function)
    builtins.open = io.open = make_builtin_open()


def _put(name: str, function: Any) -> None:
    original = getattr(os, name, None)
    if original is None:  # not on this system
        return
    function = functools.wraps(original)(function)
    function.__module__ = "os"  # where pickle, for example, finds it
    setattr(os, name, function)
    for each in _SETS:
        if original in each:
            each.add(function)


def _redirect(name: str, find: Callable[[View, str], str | None], *, follow: bool = True) -> Any:
    """Return a replacement with one path; `find` returns the path of the file, or None if nothing is left to do."""
    original: Any = getattr(posix, name, None)

    def call(path: Any, *args: Any, dir_fd: int | None = None, **options: Any) -> Any:
        view = STATE.view
        more = options if dir_fd is None else {**options, "dir_fd": dir_fd}
        if view is None or isinstance(path, int):
            return original(path, *args, **more)
        with as_given(path):
            place = view.find(path, dir_fd, follow=follow and options.get("follow_symlinks", True))
            found = find(view, place.real)
            if found is None:
                return None
            if found == place.real and not place.moved:
                return original(path, *args, **more)
            return original(found, *args, **options)

    return call


def _make_access() -> Any:
    look = _redirect("access", see)

    def call(path: Any, mode: int, **options: Any) -> bool:
        try:
            return bool(look(path, mode, **options))
        except OSError:  # `access` returns False where other calls raise
            return False

    return call


_OTHERS = {
    "access": _make_access(),
    "open": make_open(),
    "rename": make_rename("rename"),
    "replace": make_rename("replace"),
    "link": make_link(),
    "symlink": make_symlink(),
    "listdir": make_listdir(),
    "scandir": make_scandir(),
    "chdir": make_chdir(),
}
