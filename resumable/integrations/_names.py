"""Names inside other packages, by their dotted paths."""

from __future__ import annotations

from typing import Any

__all__ = ["missing_names"]


def missing_names(owner: Any, names: str) -> list[str]:
    """Return those of some dotted names, with spaces between them, that lead to nothing."""
    return [path for path in names.split() if not _has(owner, path)]


def _has(owner: Any, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
    return True
