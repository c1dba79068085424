"""Lists of numbers and texts, which are one part: their entries have no names, and there may be many."""

from __future__ import annotations

from typing import Any

import numpy as np

from resumable._parts.kinds import take
from resumable._parts.texts import Text, digest_text, text_of

__all__ = ["as_one"]

_SCALARS = (type(None), bool, int, float, complex, str)
_EXACT = frozenset(_SCALARS)
_LISTS = frozenset({list, tuple})


def as_one(value: Any) -> Text | None:
    """Return the text of a list of numbers and texts; None for anything else."""
    if type(value) not in _LISTS or not value:
        return None
    kinds = set(map(type, value))
    return _of_list(value, kinds) if _is_plain(kinds) else None


def _is_plain(kinds: set[type]) -> bool:
    return kinds <= _EXACT or all(issubclass(kind, (*_SCALARS, np.generic)) for kind in kinds)


def _of_list(value: Any, kinds: set[type]) -> Text:
    try:
        inner = repr(list(value)) if kinds <= _EXACT else None
    except ValueError:  # a number of too many digits
        inner = None
    return Text(f"list of {len(value)}: {digest_text(inner or repr([text_of(take(part)) for part in value]))}")
