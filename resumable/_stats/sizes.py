"""Sizes of batches: how many bytes of data are in one, as far as that is quickly told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from resumable._introspection import ask, has, is_exactly, survive

__all__ = ["size_of"]

_MOST = 16  # values of a list that are looked at
_DEEPEST = 16  # levels; a list may contain itself
_NUMBER = 8
_NUMBERS = (int, float, bool, complex)


def size_of(batch: Any) -> int:
    """Return the bytes of a batch: an estimate where it has long lists of Python's values.

    An object that raises when it is looked at counts nothing.
    """
    return survive("a batch", lambda: round(_size(batch, _MOST, _DEEPEST)), 0)


def _size(value: Any, most: int, levels: int) -> float:
    if is_exactly(value, _NUMBERS):
        return _NUMBER
    size = ask(value, "nbytes") if has(type(value), "nbytes") else None
    if isinstance(size, int):
        return float(size)
    if issubclass(type(value), (bytes, bytearray, str)):
        return len(value)
    if not levels:
        return 0
    return _of_parts(_parts(value), most if issubclass(type(value), list) else _MOST, levels)


def _parts(value: Any) -> list[Any]:
    if issubclass(type(value), Mapping):
        return list(value.values())
    if issubclass(type(value), (list, tuple)):
        return value  # type: ignore[no-any-return]  # as good as a list
    if ask(type(value), "__dataclass_fields__") is not None:
        return [ask(value, one.name) for one in fields(value)]
    return []


def _of_parts(parts: list[Any], most: int, levels: int) -> float:
    """Sum up the parts; of many, some at equal distances stand for the others.

    Args:
        parts: of a collection.
        most: how many are looked at, those in lists inside of them included.
        levels: how deep to go.
    """
    count = len(parts)
    if count <= most:
        inside = max(most // max(count, 1), 1)
        return sum(_size(part, inside, levels - 1) for part in parts)
    looked_at = [parts[number * count // most] for number in range(most)]
    return count / most * sum(_size(part, 1, levels - 1) for part in looked_at)
