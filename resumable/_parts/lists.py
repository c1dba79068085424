"""Lists of numbers and texts, which are one part: their entries have no names, and there may be many."""

from __future__ import annotations

from typing import Any

import numpy as np

from resumable._introspection import is_exactly
from resumable._parts.kinds import take
from resumable._parts.texts import Text, digest_text, text_of

__all__ = ["as_one"]

_SCALARS = (type(None), bool, int, float, complex, str)
_EXACT = frozenset(map(id, _SCALARS))


def as_one(value: Any) -> Text | None:
    """Return the text of a list of numbers and texts; None for anything else."""
    if not is_exactly(value, (list, tuple)) or not value:
        return None
    kinds = {id(kind): kind for kind in map(type, value)}  # by number, as a class need not be hashable
    exact = kinds.keys() <= _EXACT
    plain = exact or all(issubclass(kind, (*_SCALARS, np.generic)) for kind in kinds.values())
    return _of_list(value, exact=exact) if plain else None


def _of_list(value: Any, *, exact: bool) -> Text:
    try:
        inner = repr(list(value)) if exact else None
    except ValueError:  # a number of too many digits
        inner = None
    return Text(f"list of {len(value)}: {digest_text(inner or repr([text_of(take(part)) for part in value]))}")
