"""What all redirected calls have in common: they were judged, and their errors name what was given."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from resumable.chaos.overlay.changes import create
from resumable.chaos.overlay.state import STATE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable.chaos.overlay.view import View

__all__ = ["as_given", "create_or_keep", "is_temporary"]


@contextmanager
def as_given(path: Any, other: Any = None) -> Iterator[None]:
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


def create_or_keep(view: View, real: str) -> str:
    """Return where something new is to be made; what `tempfile` makes stays where it is."""
    return real if is_temporary(view, real) else create(view, real)


def is_temporary(view: View, real: str) -> bool:
    """Tell whether `tempfile` is about to make something in its own directory, and remember it then."""
    if not (STATE.local.temporary and view.is_redirected(real) and view.exempt.is_new_temporary(real)):
        return False
    view.exempt.temporary.add(real)
    return True
