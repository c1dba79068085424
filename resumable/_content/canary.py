"""Canary: a digest of one element. With it, a resumed run checks whether the source continues with the same elements.

It covers the structure of the element and at most 4 kB of its bytes, so it costs a few µs. Arrays on other devices than
the CPU, and objects of unknown types, count only with their type and shape. So a canary never rejects a correct source,
and different elements rarely have the same one.
"""

from __future__ import annotations

import hashlib
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._content.arrays import has_plain_numbers
from resumable._content.leaves import excerpt, walk
from resumable._introspection import qualname_of, survive

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Canary"]

_BYTES = 4096  # of all leaves together
_LEAVES = 256
_BLOCKS = 16  # of a large array, spread over it: many images start with a black border
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_PATHS = {"__url__", "__local_path__"}  # WebDataset's keys for the location of a sample's file, which may change


class Canary:
    """Digest of an element: computed when it is needed, or immediately if the element can be changed.

    Args:
        element: yielded by a source.
    """

    __slots__ = ("_digest", "_element", "_pending")

    def __init__(self, element: Any) -> None:
        self._pending = issubclass(type(element), _PLAIN)
        self._element = element if self._pending else None
        self._digest = None if self._pending else _digest(element)

    @classmethod
    def known(cls, digest: str) -> Canary:
        """Return the canary of an element from a different run."""
        canary = cls(None)
        canary._pending, canary._digest = False, digest
        return canary

    @property
    def digest(self) -> str | None:
        """16 hexadecimal digits; None if the element cannot be digested."""
        if self._pending:
            self._digest, self._pending = _digest(self._element), False
            self._element = None
        return self._digest

    def fits(self, element: Any) -> bool:
        """Return whether an element may be the one that this canary was made from."""
        now = _digest(element)
        return None in (now, self.digest) or now == self.digest


def _digest(element: Any) -> str | None:
    return survive("an element of the source", lambda: _digested(element), None)


def _digested(element: Any) -> str:
    whole = hashlib.blake2b(digest_size=8, person=b"canary1")
    room = _BYTES
    for count, (_, part) in enumerate(walk(element, _read)):
        if count > _LEAVES or room <= 0:
            break
        whole.update(b"%d:" % len(part) + part[:room])
        room -= len(part)
    return whole.hexdigest()


def _read(_path: str, value: Any, _depth: int) -> tuple[Iterable[bytes], Sequence[tuple[str, Any]]]:
    """Encode the structure of a value and samples of its bytes. At most `_LEAVES` parts are read."""
    kind = type(value)
    leaves: Iterable[bytes]
    parts: Sequence[tuple[str, Any]] = ()
    if issubclass(kind, (np.ndarray, np.generic)):
        leaves = _array(np.asarray(value))
    elif _is_tensor(value):
        leaves = _tensor(value)
    elif issubclass(kind, (str, bytes, bytearray)):
        leaves = (b"text %d" % len(value), excerpt(value))
    elif issubclass(kind, _PLAIN):
        leaves = (f"{kind.__name__} {value!r}".encode(),)
    elif issubclass(kind, dict):
        items = islice(value.items(), _LEAVES)
        leaves = (b"dict %d" % len(value),)
        parts = [("", part) for key, inner in items for part in ((key,) if key in _PATHS else (key, inner))]
    elif issubclass(kind, (list, tuple)):
        leaves, parts = (b"list %d" % len(value),), [("", part) for part in islice(value, _LEAVES)]
    else:
        leaves = (qualname_of(kind).encode(),)
    return leaves, parts


def _array(values: np.ndarray[Any, Any]) -> Iterator[bytes]:
    yield f"array {values.dtype.str} {values.shape}".encode()
    if values.dtype.hasobject:
        return
    size, width = values.size, max(1, _BYTES // 4 // max(1, values.itemsize))
    if size <= width:
        yield values.tobytes()
        return
    block = max(1, width // _BLOCKS)
    starts = [number * (size - block) // (_BLOCKS - 1) for number in range(_BLOCKS)]
    if values.flags.c_contiguous:
        flat = values.reshape(-1)
        yield b"".join(flat[start : start + block].tobytes() for start in starts)
    else:
        yield values.flat[[start + one for start in starts for one in range(block)]].tobytes()


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(type(value), torch.Tensor)


def _tensor(value: Any) -> Iterator[bytes]:
    yield f"tensor {value.dtype} {tuple(value.shape)} {value.layout}".encode()
    if has_plain_numbers(value):
        torch: Any = sys.modules["torch"]
        plain = value.detach()
        yield from _array((plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain).numpy())
