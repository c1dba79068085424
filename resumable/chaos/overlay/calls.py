"""The functions that Python's own library and all others written in Python reach files by, each looking where a path leads to.

Each keeps its name, its arguments and its errors. A path that leads nowhere else is passed on as it was given.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import posix
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from resumable.chaos.overlay.changes import change, create, move, open_for_writing, remove, remove_dir
from resumable.chaos.overlay.errors import check_there, see
from resumable.chaos.overlay.listing import entries_in, entries_of_system, is_mixed, names_in
from resumable.chaos.overlay.state import STATE
from resumable.chaos.overlay.view import is_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable.chaos.overlay.view import Place, View

__all__ = ["WRITING", "install"]

WRITING = posix.O_WRONLY | posix.O_RDWR | posix.O_CREAT | posix.O_TRUNC | posix.O_APPEND
_UNNAMED = getattr(posix, "O_TMPFILE", 0)
_SETS = (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids)


def install() -> None:
    """Put them into `os`, `io` and `builtins`."""
    for name in ("stat", "statvfs", "getxattr", "listxattr", "pathconf"):
        _put(name, _redirect(name, see))
    for name in ("lstat", "readlink"):
        _put(name, _redirect(name, see, follow=False))
    for name in ("truncate", "chmod", "chown", "utime", "setxattr", "removexattr", "chflags"):
        _put(name, _redirect(name, change))
    for name in ("lchown", "lchmod", "lchflags"):
        _put(name, _redirect(name, change, follow=False))
    for name in ("mkdir", "mkfifo", "mknod"):
        _put(name, _redirect(name, _create, follow=False))
    for name in ("unlink", "remove"):
        _put(name, _redirect(name, remove, follow=False))
    _put("rmdir", _redirect("rmdir", remove_dir, follow=False))
    for name, make in _OTHERS.items():
        _put(name, make(name))
    builtins.open = io.open = _make_builtin_open()


def _put(name: str, function: Any) -> None:
    original = getattr(os, name, None)
    if original is None:  # not on this system
        return
    function = functools.wraps(original)(function)
    function.__module__ = "os"  # where it is found, by pickle for example
    setattr(os, name, function)
    for each in _SETS:
        if original in each:
            each.add(function)


def _redirect(name: str, find: Callable[[View, str], str | None], *, follow: bool = True) -> Any:
    """Make a function of one path; `find` says where the file is, or None where nothing is left to do."""
    original = getattr(posix, name, None)

    def call(path: Any, *args: Any, dir_fd: int | None = None, **options: Any) -> Any:
        view = STATE.view
        more = options if dir_fd is None else {**options, "dir_fd": dir_fd}
        if view is None or isinstance(path, int):
            return original(path, *args, **more)
        with _as_given(path):
            place = view.find(path, dir_fd, follow=follow and options.get("follow_symlinks", True))
            found = find(view, place.real)
            if found is None:
                return None
            if found == place.real and not place.moved:
                return original(path, *args, **more)
            return original(found, *args, **options)

    return call


@contextmanager
def _as_given(path: Any, other: Any = None) -> Iterator[None]:
    """Let the audit hook pass what was judged; an error names the path that was given."""
    try:
        with STATE.trusted():
            yield
    except OSError as error:
        if error.filename is not None:
            error.filename = os.fspath(path) if isinstance(path, os.PathLike) else path
        if other is not None:
            error.filename2 = os.fspath(other)
        raise


def _create(view: View, real: str) -> str:
    if STATE.local.temporary and view.is_redirected(real) and view.exempt.is_new_temporary(real):
        view.exempt.temporary.add(real)
        return real
    return create(view, real)


def _make_open(name: str) -> Any:
    def call(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        view = STATE.view
        if view is None:
            return posix.open(path, flags, mode, dir_fd=dir_fd)
        with _as_given(path):
            place = view.find(path, dir_fd, follow=not flags & (posix.O_NOFOLLOW | posix.O_EXCL))
            found = _find_to_open(view, place.real, flags)
            if found == place.real and not place.moved:
                return posix.open(path, flags, mode, dir_fd=dir_fd)
            return posix.open(found, flags, mode)

    return call


def _find_to_open(view: View, real: str, flags: int) -> str:
    if not flags & WRITING:
        shown = see(view, real)
        if shown == real and view.is_redirected(real):
            STATE.recent = real
        return shown
    if _UNNAMED and flags & _UNNAMED == _UNNAMED:
        return real  # a file without a name in a directory
    if flags & posix.O_EXCL and flags & posix.O_CREAT:
        if STATE.local.temporary and view.is_redirected(real) and view.exempt.is_new_temporary(real):
            view.exempt.temporary.add(real)
            return real
    return open_for_writing(view, real, flags)


def _make_builtin_open() -> Any:
    original = io.open

    @functools.wraps(original)
    def call(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        view = STATE.view
        opener = options.get("opener") or (args[5] if len(args) > 5 else None)  # noqa: PLR2004  # its place
        if view is None or isinstance(file, int) or not isinstance(mode, str):
            return original(file, mode, *args, **options)
        if opener is not None:  # it opens what it likes, by a function that looks there itself
            with STATE.trusted():
                return original(file, mode, *args, **options)
        with _as_given(file):
            place = view.find(file, follow="x" not in mode)
            found = _find_to_open(view, place.real, _flags_of(mode))
            return original(file if found == place.real and not place.moved else found, mode, *args, **options)

    return call


def _flags_of(mode: str) -> int:
    if "w" in mode:
        return posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC
    if "x" in mode:
        return posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL
    if "a" in mode:
        return posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND
    return posix.O_RDWR if "+" in mode else posix.O_RDONLY


def _make_rename(name: str) -> Any:
    original = getattr(posix, name)

    def call(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        view = STATE.view
        if view is None:
            original(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            return
        with _as_given(src, dst):
            source, target = view.find(src, src_dir_fd, follow=False), view.find(dst, dst_dir_fd, follow=False)
            if view.is_redirected(source.real) or view.is_redirected(target.real) or source.moved or target.moved:
                move(view, source.real, target.real)
            else:
                original(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    return call


def _make_link(name: str) -> Any:
    def call(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None, **options: Any) -> None:
        view = STATE.view
        if view is None:
            posix.link(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, **options)
            return
        with _as_given(src, dst):
            source = view.find(src, src_dir_fd, follow=False)
            check_there(view, source.real)
            target = view.find(dst, dst_dir_fd, follow=False)
            # What is changed by one of its names is changed by the other one, so it has to be a copy.
            posix.link(change(view, source.real), create(view, target.real), **options)

    return call


def _make_symlink(name: str) -> Any:
    def call(src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:  # noqa: FBT002  # as in os
        if STATE.view is None:
            posix.symlink(src, dst, target_is_directory, dir_fd=dir_fd)
            return
        with _as_given(src, dst):
            made = _create(STATE.view, STATE.view.find(dst, dir_fd, follow=False).real)
            posix.symlink(src, made, target_is_directory)

    return call


def _make_listdir(name: str) -> Any:
    def call(path: Any = None) -> Any:
        view = STATE.view
        if view is None:
            return posix.listdir(path)
        with _as_given(path):
            place = _find_dir(view, path)
            if not place.moved and not is_mixed(view, place.real):
                return posix.listdir(path)
            names = names_in(view, place.real)
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    return call


def _make_scandir(name: str) -> Any:
    def call(path: Any = None) -> Any:
        view = STATE.view
        if view is None:
            return posix.scandir(path)
        with _as_given(path):
            place = _find_dir(view, path)
            own = place.moved or is_mixed(view, place.real)
            return (entries_in if own else entries_of_system)(view, place.real, path)

    return call


def _find_dir(view: View, path: Any) -> Place:
    place = view.find(".", path) if isinstance(path, int) else view.find("." if path is None else path)
    see(view, place.real)
    return place


def _make_chdir(name: str) -> Any:
    def call(path: Any) -> None:
        view = STATE.view
        if view is None or isinstance(path, int):
            posix.chdir(path)
            return
        with _as_given(path):
            real = view.find(path).real
            # The machine's, where it has one: relative paths are looked at here, and programs in C read its files.
            own = not view.is_redirected(real) or view.gone.covers(real) or not is_dir(real)
            posix.chdir(see(view, real) if own else real)

    return call


def _make_access(name: str) -> Any:
    look = _redirect(name, see)

    def call(path: Any, mode: int, **options: Any) -> bool:
        try:
            return bool(look(path, mode, **options))
        except OSError:  # it says no where others raise
            return False

    return call


_OTHERS = {
    "access": _make_access,
    "open": _make_open,
    "rename": _make_rename,
    "replace": _make_rename,
    "link": _make_link,
    "symlink": _make_symlink,
    "listdir": _make_listdir,
    "scandir": _make_scandir,
    "chdir": _make_chdir,
}
