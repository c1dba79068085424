"""Common to all redirected calls: the audit hook ignores them, and their errors contain the path that was passed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from resumable.chaos.recorder.overlay.changes import create
from resumable.chaos.recorder.overlay.state import STATE

if TYPE_CHECKING:
    from resumable.chaos.recorder.overlay.view import View

__all__ = ["as_given", "create_or_keep", "is_temporary"]


class as_given:  # noqa: N801  # used as a function; a generator would take as long as the call itself
    """Make the audit hook ignore a call that was checked; its errors contain the path that was passed.

    Args:
        path: the path that the caller passed.
        other: the second path, for calls with two.
    """

    def __init__(self, path: Any, other: Any = None) -> None:
        self._path, self._other = path, other

    def __enter__(self) -> None:
        STATE.local.trusted += 1

    def __exit__(self, _: object, error: object, __: object) -> None:
        STATE.local.trusted -= 1
        if isinstance(error, OSError):
            if error.filename is not None:
                error.filename = os.fspath(self._path) if isinstance(self._path, os.PathLike) else self._path
            if self._other is not None:
                error.filename2 = os.fspath(self._other)


def create_or_keep(view: View, real: str) -> str:
    """Return the path at which to create something new; files of `tempfile` are not redirected."""
    return real if is_temporary(view, real) else create(view, real)


def is_temporary(view: View, real: str) -> bool:
    """Return whether `tempfile` is about to create something in its own directory; if so, remember it."""
    if not (STATE.local.temporary and view.is_redirected(real) and view.exempt.is_new_temporary(real)):
        return False
    view.exempt.temporary.add(real)
    return True
