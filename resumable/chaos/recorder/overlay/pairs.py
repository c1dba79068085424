"""Replacements of calls with two paths: renames and links."""

from __future__ import annotations

import posix
from typing import Any

from resumable.chaos.recorder.overlay.changes import change, create, move
from resumable.chaos.recorder.overlay.errors import check_parent, check_there
from resumable.chaos.recorder.overlay.judged import as_given, create_or_keep
from resumable.chaos.recorder.overlay.state import STATE

__all__ = ["make_link", "make_rename", "make_symlink"]


def make_rename(name: str) -> Any:
    """Return a replacement for `os.rename` or `os.replace`."""
    original = getattr(posix, name)

    def call(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        view = STATE.view
        if view is None:
            original(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            return
        with as_given(src, dst):
            source = view.find(src, src_dir_fd, follow=False)
            check_parent(view, source.real)  # before the other path, as the system does
            target = view.find(dst, dst_dir_fd, follow=False)
            if view.is_redirected(source.real) or view.is_redirected(target.real) or source.moved or target.moved:
                move(view, source.real, target.real)
            else:
                original(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            if STATE.saves is not None:
                STATE.saves.renamed(source.real, target.real)

    return call


def make_link() -> Any:
    """Return a replacement for `os.link`."""

    def call(
        src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None, **options: Any
    ) -> None:
        view = STATE.view
        if view is None:
            posix.link(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, **options)
            return
        with as_given(src, dst):
            source = view.find(src, src_dir_fd, follow=False)
            check_there(view, source.real)
            target = view.find(dst, dst_dir_fd, follow=False)
            # A change through one of its names changes the file under the other name, so it must be a copy.
            posix.link(change(view, source.real), create(view, target.real), **options)

    return call


def make_symlink() -> Any:
    """Return a replacement for `os.symlink`."""

    def call(src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:  # as in os
        if STATE.view is None:
            posix.symlink(src, dst, target_is_directory, dir_fd=dir_fd)
            return
        with as_given(src, dst):
            made = create_or_keep(STATE.view, STATE.view.find(dst, dir_fd, follow=False).real)
            posix.symlink(src, made, target_is_directory)

    return call
