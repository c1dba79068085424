"""The errors that the system would raise; it is not asked itself, because it does not know the case's files."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NoReturn

from resumable.chaos.recorder.overlay.view import exists, is_dir

if TYPE_CHECKING:
    from resumable.chaos.recorder.overlay.view import View

__all__ = ["check_parent", "check_there", "fail", "folder_of", "see"]


def see(view: View, real: str) -> str:
    """Return the path of the file shown at a path.

    Raises:
        OSError: nothing is shown there.
    """
    shown = view.shown(real)
    if view.is_redirected(real) and not exists(shown):
        check_there(view, real)
    return shown


def check_there(view: View, real: str) -> None:
    """Verify that something exists at a path.

    Raises:
        OSError: nothing exists there, or a parent is not a directory.
    """
    if not exists(view.shown(real)):
        check_parent(view, real)
        fail(errno.ENOENT, real)


def check_parent(view: View, real: str) -> None:
    """Verify that something can be created at a path."""
    parent = there = folder_of(real)
    while not exists(view.shown(there)):
        there = folder_of(there)
    if not is_dir(view.shown(there)):
        fail(errno.ENOTDIR, real)
    if there != parent:
        fail(errno.ENOENT, real)


def folder_of(real: str) -> str:
    """Return the directory of a path."""
    return os.path.dirname(real)


def fail(number: int, path: str) -> NoReturn:
    """Raise the system error with a number."""
    raise OSError(number, os.strerror(number), path)
