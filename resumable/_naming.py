"""Names of sources, which identify the data in a state."""

from __future__ import annotations

from typing import Any

from resumable._introspection import ask, qualname_of

__all__ = ["identity_of", "name_of"]


def name_of(source: Any, identity: str | None) -> str:
    """Return the name that the user passed, else the function's name, else the name of the type.

    The module is left out: the module of a script's classes depends on how the script is started.
    """
    if identity:
        return identity
    own = ask(source, "__qualname__")
    return own if type(own) is str and own else qualname_of(type(source))


def identity_of(source: Any, identity: str | None) -> dict[str, Any]:
    """Return the name of a source and its attribute `resumable_identity`, as plain values."""
    return {"source": name_of(source, identity), **ask(source, "resumable_identity", {})}
