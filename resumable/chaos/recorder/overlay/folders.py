"""Replacements of calls that list a directory or change into it."""

from __future__ import annotations

import os
import posix
from typing import TYPE_CHECKING, Any

from resumable.chaos.recorder.overlay.errors import see
from resumable.chaos.recorder.overlay.judged import as_given
from resumable.chaos.recorder.overlay.listing import entries_in, entries_of_system, is_mixed, names_in
from resumable.chaos.recorder.overlay.state import STATE
from resumable.chaos.recorder.overlay.view import is_dir

if TYPE_CHECKING:
    from resumable.chaos.recorder.overlay.view import Resolved, View

__all__ = ["make_chdir", "make_listdir", "make_scandir"]


def make_listdir() -> Any:
    """Return a replacement for `os.listdir`."""

    def call(path: Any = None) -> Any:
        view = STATE.view
        if view is None:
            return posix.listdir(path)
        with as_given(path):
            place = _find_dir(view, path)
            if not place.moved and not is_mixed(view, place.real):
                return posix.listdir(path)
            names = names_in(view, place.real)
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    return call


def make_scandir() -> Any:
    """Return a replacement for `os.scandir`."""

    def call(path: Any = None) -> Any:
        view = STATE.view
        if view is None:
            return posix.scandir(path)
        with as_given(path):
            place = _find_dir(view, path)
            own = place.moved or is_mixed(view, place.real)
            return (entries_in if own else entries_of_system)(view, place.real, path)

    return call


def make_chdir() -> Any:
    """Return a replacement for `os.chdir`."""

    def call(path: Any) -> None:
        view = STATE.view
        if view is None or isinstance(path, int):
            posix.chdir(path)
            return
        with as_given(path):
            real = view.find(path).real
            # The machine's directory if there is one: relative paths are resolved here, and C programs read its files.
            own = not view.is_redirected(real) or view.gone.covers(real) or not is_dir(real)
            posix.chdir(see(view, real) if own else real)

    return call


def _find_dir(view: View, path: Any) -> Resolved:
    place = view.find(".", path) if isinstance(path, int) else view.find("." if path is None else path)
    see(view, place.real)
    return place
