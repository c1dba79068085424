"""Names of sources, for the identity in a state."""

from __future__ import annotations

from typing import Any

from resumable._introspection import ask, qualname_of

__all__ = ["identity_of", "name_of"]


def name_of(source: Any, identity: str | None) -> str:
    """Return the name that the user gave, or that of a function, or that of the type.

    Without the module: a script's own classes would change their name with the way the script is started.
    """
    if identity:
        return identity
    own = ask(source, "__qualname__")
    return own if type(own) is str and own else qualname_of(type(source))


def identity_of(source: Any, identity: str | None) -> dict[str, Any]:
    """Return the name of a source, and what it says of its data by an attribute `resumable_identity`: plain values."""
    return {"source": name_of(source, identity), **ask(source, "resumable_identity", {})}
