"""Names of sources, for the identity in a state."""

from __future__ import annotations

from typing import Any

__all__ = ["name_of"]


def name_of(source: Any, identity: str | None) -> str:
    """Return the name that the user gave, or that of a function, or that of the type.

    Without the module: a script's own classes would change their name with the way the script is started.
    """
    return identity or getattr(source, "__qualname__", None) or type(source).__qualname__
