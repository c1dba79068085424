"""Warnings that point at the user's line."""

from __future__ import annotations

import contextlib
import sys
import warnings

__all__ = ["warn"]


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line that called this package, however deep inside of it the warning is.

    It does what `skip_file_prefixes` of `warnings.warn` does in Python 3.12 and later.
    """
    frame, level = sys._getframe(1), 2  # noqa: SLF001  # documented, for CPython and PyPy
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, level)


def _is_ours(module: object) -> bool:
    """Return whether a module is of this package, or only passes calls on."""
    return isinstance(module, str) and (module.startswith("resumable.") or module == contextlib.__name__)
