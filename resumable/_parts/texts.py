"""Texts that stand for values and keys. They are the same in every process, and differ where a value does."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Self

import numpy as np

from resumable._introspection import is_exactly, module_of, qualname_of
from resumable._parts.arrays import Array

__all__ = [
    "UNCOMPARED",
    "Text",
    "Uncompared",
    "digest_text",
    "dotted",
    "is_exact",
    "name_of",
    "short",
    "step",
    "text_of",
]

UNCOMPARED = "not compared: "
_SHOWN = 40  # characters of a value that stands for itself
_LARGEST = 1 << 256  # of numbers that are spelled out
_BARE = re.compile(r'(?!-?\d+\Z)[^\s."]+')

# Whose `repr` says all that they are, and is written by Python itself.
_EXACT = (int, float, str, bool, type(None), bytes, complex, type(...), range)


class Text(str):
    """Stands for a value that has no parts of its own."""

    __slots__ = ()


class Uncompared(Text):
    """Says why a value is not compared."""

    __slots__ = ()

    def __new__(cls, why: str) -> Self:
        return super().__new__(cls, f"{UNCOMPARED}{why}")

    @property
    def why(self) -> str:
        """The reason."""
        return self.removeprefix(UNCOMPARED)


def is_exact(value: Any) -> bool:
    """Return whether a value has a `repr` that says all that it is."""
    return is_exactly(value, _EXACT)


def text_of(leaf: Any) -> str:
    """Return a short text that differs where a leaf does."""
    kind = type(leaf)
    if kind is Array:
        return str(leaf.text)
    if kind is Text or kind is Uncompared:
        return str.__str__(leaf)
    if kind is int and not -_LARGEST < leaf < _LARGEST:
        return short(hex(leaf))
    if kind is bytes and len(leaf) > _SHOWN:
        return f"bytes of {len(leaf)}: {blake2b(leaf, digest_size=8).hexdigest()}"
    return short(repr(leaf))


def short(text: str) -> str:
    """Return a text, or its beginning and a digest."""
    return text if len(text) <= _SHOWN else f"{text[:20]}... with the digest {digest_text(text)}"


def digest_text(text: str) -> str:
    """Digest a text."""
    return blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def name_of(value: Any) -> str:
    """Name the class of a value, for a sentence."""
    return f"a value of {module_of(type(value))}.{qualname_of(type(value))}"


def step(key: Any) -> str:
    r"""Write a key as one step of a dotted path.

    Names and whole numbers stand for themselves. Texts with a dot or a space, and those that look like numbers, are
    quoted as in JSON; before other keys, also in quotes, stands their type.

    >>> [step(key) for key in ("lr", 0, "0", "layer.weight", 0.5, (1, "a"), None)]
    ['lr', '0', '"0"', '"layer.weight"', 'float"0.5"', 'tuple"(1, \'a\')"', 'NoneType"None"']
    """
    kind = type(key)
    if kind is str or kind is np.str_:
        return _of_name(str(key))
    if kind is int or issubclass(kind, np.integer):
        return str(key) if -_LARGEST < key < _LARGEST else hex(key)
    return f"{kind.__name__}{_quoted(_of_key(key))}"


@lru_cache(4096)
def _of_name(name: str) -> str:
    return name if name.isprintable() and _BARE.fullmatch(name) else _quoted(name)


def dotted(path: tuple[Any, ...]) -> str:
    """Write the keys on the way to a part as its path."""
    return ".".join(map(step, path))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _of_key(key: Any) -> str:
    if is_exact(key):
        return text_of(key)
    if type(key) is tuple and all(map(is_exact, key)):
        return short(f"({', '.join(map(text_of, key))})")
    from resumable._parts.leaves import digest_of  # noqa: PLC0415  # which needs steps, too

    return digest_of(key)
