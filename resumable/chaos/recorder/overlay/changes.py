"""Changes to files outside a case, applied to the case's copies.

Functions take real paths from `View.find`, and raise the errors that the system would raise. Changes in several steps
are ordered so that a kill in between leaves either the old or the new files.
"""

from __future__ import annotations

import errno
import posix
import stat
from typing import TYPE_CHECKING

from resumable.chaos.recorder.overlay.copying import copy_file
from resumable.chaos.recorder.overlay.errors import check_parent, check_there, fail, folder_of
from resumable.chaos.recorder.overlay.inplace import tell_removed
from resumable.chaos.recorder.overlay.listing import names_in
from resumable.chaos.recorder.overlay.marks import make_dirs
from resumable.chaos.recorder.overlay.state import STATE
from resumable.chaos.recorder.overlay.view import exists, is_dir

if TYPE_CHECKING:
    from resumable.chaos.recorder.overlay.view import View

__all__ = ["change", "create", "move", "open_for_writing", "remove", "remove_dir"]


def create(view: View, real: str) -> str:
    """Return the path at which to create something new, such as a directory or a link."""
    if not view.is_redirected(real):
        return real
    if exists(view.shown(real)):
        fail(errno.EEXIST, real)
    STATE.tell("written", real)
    return _make_parents(view, real)


def open_for_writing(view: View, real: str, flags: int) -> str:
    """Return the file to open; if it is modified rather than replaced, a copy of the machine's file."""
    if not view.is_redirected(real):
        return real
    if not view.is_the_machines(real):
        STATE.tell("written", folder_of(real))
        return _make_parents(view, real)
    if flags & posix.O_CREAT and flags & posix.O_EXCL:
        fail(errno.EEXIST, real)
    if is_dir(real):
        fail(errno.EISDIR, real)
    return change(view, real, empty=bool(flags & posix.O_TRUNC))


def change(view: View, real: str, *, empty: bool = False) -> str:
    """Return the file or directory to change: a copy of the machine's, which is created if necessary.

    Args:
        view: of the files.
        real: its path.
        empty: whether its content is not needed.
    """
    if not view.is_redirected(real):
        return real
    copy = view.copy_of(real)
    if not view.is_the_machines(real):
        check_there(view, real)
        return copy
    STATE.tell("written", folder_of(real))
    _make_parents(view, real)
    mode = posix.lstat(real).st_mode
    with STATE.trusted():
        if stat.S_ISDIR(mode):
            make_dirs(copy)
        else:
            copy_file(view, real, copy, mode, empty=empty)
    return copy


def remove(view: View, real: str) -> str | None:
    """Remove a file; return the copy that remains to be removed, if there is one."""
    tell_removed(view, real)
    if not view.is_redirected(real):
        return real
    copy, shown = view.copy_of(real), view.shown(real)
    check_there(view, real)
    if stat.S_ISDIR(posix.lstat(shown).st_mode):
        fail(errno.EISDIR, real)
    _hide(view, real)
    return copy if exists(copy) else None


def remove_dir(view: View, real: str) -> str | None:
    """Remove an empty directory; return the copy that remains to be removed, if there is one."""
    if not view.is_redirected(real):
        return real
    copy, shown = view.copy_of(real), view.shown(real)
    check_there(view, real)
    if not stat.S_ISDIR(posix.lstat(shown).st_mode):
        fail(errno.ENOTDIR, real)
    if names_in(view, real):
        fail(errno.ENOTEMPTY, real)
    _hide(view, real)
    return copy if exists(copy) else None


def move(view: View, source: str, target: str) -> None:
    """Rename a file or a directory."""
    check_parent(view, source)
    check_parent(view, target)
    check_there(view, source)
    if source == target:
        return
    if target.startswith(f"{source}/"):
        fail(errno.EINVAL, source)
    if source.startswith(f"{target}/"):
        fail(errno.ENOTEMPTY, source)
    from_dir = stat.S_ISDIR(posix.lstat(view.shown(source)).st_mode)
    moved_to = _prepare_target(view, target, from_dir=from_dir) if view.is_redirected(target) else target
    moved_from = _copy_tree(view, source) if view.is_redirected(source) else source
    with STATE.trusted():
        posix.rename(moved_from, moved_to)
    if view.is_redirected(target) and exists(target) and stat.S_ISLNK(posix.lstat(target).st_mode):
        view.gone.add(target)  # otherwise paths through it would follow the old link
    if view.is_redirected(source):
        _hide(view, source)


def _prepare_target(view: View, target: str, *, from_dir: bool) -> str:
    _check_target(view, target, from_dir=from_dir)
    STATE.tell("written", target if from_dir else folder_of(target))
    if from_dir:
        _hide(view, target)  # otherwise its content would show up in the directory that replaces it
    return _make_parents(view, target)


def _check_target(view: View, target: str, *, from_dir: bool) -> None:
    shown = view.shown(target)
    if not exists(shown):
        return
    if stat.S_ISDIR(posix.lstat(shown).st_mode):
        if not from_dir:
            fail(errno.EISDIR, target)
        if names_in(view, target):
            fail(errno.ENOTEMPTY, target)
    elif from_dir:
        fail(errno.ENOTDIR, target)


def _copy_tree(view: View, real: str) -> str:
    shown = view.shown(real)
    if stat.S_ISDIR(posix.lstat(shown).st_mode):
        make_dirs(view.copy_of(real))
        for name in names_in(view, real):
            _copy_tree(view, f"{real}/{name}")
        return view.copy_of(real)
    return change(view, real)


def _hide(view: View, real: str) -> None:
    """Hide the machine's file; this comes first, so a kill does not bring it back."""
    STATE.tell("written", real if is_dir(real) else folder_of(real))
    if exists(real):
        view.gone.add(real)


def _make_parents(view: View, real: str) -> str:
    """Create the directory of a copy, and return the copy's path."""
    check_parent(view, real)
    copy = view.copy_of(real)
    make_dirs(folder_of(copy))
    return copy
