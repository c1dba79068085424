"""Names of sources, for the identity in a state."""

from __future__ import annotations

from typing import Any

__all__ = ["identity_of", "name_of"]


def name_of(source: Any, identity: str | None) -> str:
    """Return the name that the user gave, or that of a function, or that of the type.

    Without the module: a script's own classes would change their name with the way the script is started.
    """
    return identity or getattr(source, "__qualname__", None) or type(source).__qualname__


def identity_of(source: Any, identity: str | None) -> dict[str, Any]:
    """Return the name of a source, and what it says of its data by an attribute `resumable_identity`: plain values."""
    return {"source": name_of(source, identity), **getattr(source, "resumable_identity", {})}
