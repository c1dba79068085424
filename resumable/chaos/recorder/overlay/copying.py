"""Copies of the machine's files, made before they are changed."""

from __future__ import annotations

import os
import posix
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from resumable.chaos.recorder.overlay.marks import make_dirs

if TYPE_CHECKING:
    from resumable.chaos.recorder.overlay.view import View

__all__ = ["copy_file"]

_CHUNK = 8 << 20  # bytes
_MODE = 0o7777  # of a file, without its type


def copy_file(view: View, real: str, copy: str, mode: int, *, empty: bool) -> None:
    """Copy a file or a link atomically: other processes may see it, and this one may be killed."""
    make_dirs(view.drafts)
    draft = f"{view.drafts}/{os.getpid()}-{posix.urandom(4).hex()}"
    if stat.S_ISLNK(mode):
        posix.symlink(posix.readlink(real), draft)
    else:
        _copy_content(real, draft, mode, empty=empty)
    with suppress(FileExistsError):  # another process was faster
        posix.link(draft, copy, follow_symlinks=False)
    posix.unlink(draft)


def _copy_content(real: str, draft: str, mode: int, *, empty: bool) -> None:
    target = posix.open(draft, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC, 0o600)
    try:
        if not empty:
            source = posix.open(real, posix.O_RDONLY | posix.O_CLOEXEC)
            try:
                while chunk := posix.read(source, _CHUNK):
                    _write_all(target, chunk)
                times = posix.fstat(source)
                posix.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))
            finally:
                posix.close(source)
        posix.fchmod(target, mode & _MODE)
    finally:
        posix.close(target)


def _write_all(file: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[posix.write(file, view) :]
