"""Replacements of `open`, Python's and the system's."""

from __future__ import annotations

import functools
import io
import posix
from typing import TYPE_CHECKING, Any

from resumable.chaos.recorder.overlay.changes import open_for_writing
from resumable.chaos.recorder.overlay.errors import see
from resumable.chaos.recorder.overlay.inplace import tell_read, tell_written
from resumable.chaos.recorder.overlay.judged import as_given, is_temporary
from resumable.chaos.recorder.overlay.state import STATE

if TYPE_CHECKING:
    from resumable.chaos.recorder.overlay.view import View

__all__ = ["WRITING", "make_builtin_open", "make_open"]

WRITING = posix.O_WRONLY | posix.O_RDWR | posix.O_CREAT | posix.O_TRUNC | posix.O_APPEND
_UNNAMED = getattr(posix, "O_TMPFILE", 0)


def make_open() -> Any:
    """Return a replacement for `os.open`."""

    def call(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        view = STATE.view
        if view is None:
            return posix.open(path, flags, mode, dir_fd=dir_fd)
        with as_given(path):
            place = view.find(path, dir_fd, follow=not flags & (posix.O_NOFOLLOW | posix.O_EXCL))
            found = _find_to_open(view, place.real, flags)
            if found == place.real and not place.moved:
                return posix.open(path, flags, mode, dir_fd=dir_fd)
            return posix.open(found, flags, mode)

    return call


def make_builtin_open() -> Any:
    """Return a replacement for `open`."""
    original = io.open

    @functools.wraps(original)
    def call(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        view = STATE.view
        if view is None or isinstance(file, int) or not isinstance(mode, str):
            return original(file, mode, *args, **options)
        if opener := options.get("opener") or (args[5] if len(args) > 5 else None):  # noqa: PLR2004  # its position
            with STATE.trusted():
                return original(file, mode, *args[:5], **{**options, "opener": _heard(opener)})
        with as_given(file):
            place = view.find(file, follow="x" not in mode)
            found = _find_to_open(view, place.real, _flags_of(mode))
            return original(file if found == place.real and not place.moved else found, mode, *args, **options)

    return call


def _heard(opener: Any) -> Any:
    """Let the audit hook observe an opener, which may open anything: `tempfile` passes it a directory's name."""

    def call(path: Any, flags: int) -> Any:
        trusted, STATE.local.trusted = STATE.local.trusted, 0
        try:
            return opener(path, flags)
        finally:
            STATE.local.trusted = trusted

    return call


def _find_to_open(view: View, real: str, flags: int) -> str:
    if not flags & WRITING:
        shown = see(view, real)
        tell_read(view, real)
        if shown == real and view.is_redirected(real):
            STATE.recent = real
        return shown
    if _UNNAMED and flags & _UNNAMED == _UNNAMED:
        return real  # an unnamed file in a directory
    if flags & posix.O_EXCL and flags & posix.O_CREAT and is_temporary(view, real):
        return real
    tell_written(view, real, flags)
    return open_for_writing(view, real, flags)


def _flags_of(mode: str) -> int:
    if "w" in mode:
        return posix.O_WRONLY | posix.O_CREAT | posix.O_TRUNC
    if "x" in mode:
        return posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL
    if "a" in mode:
        return posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND
    return posix.O_RDWR if "+" in mode else posix.O_RDONLY
