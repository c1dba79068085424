"""Canary: a digest of one element, by which a resumed run tells whether the source goes on with the same ones.

It covers the structure of the element and at most 4 kB of its bytes, so it costs some microseconds. Arrays that live on
another device than the CPU, and objects of unknown types, count by their type and shape alone. So a canary never
refuses a source that is right, and two elements that differ seldom have the same one.
"""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._introspection import qualname_of, survive

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Canary"]

_BYTES = 4096  # of all leaves together
_LEAVES = 256
_BLOCKS = 16  # of a large array, spread over it: many an image begins with a black border
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_PATHS = {"__url__", "__local_path__"}  # in which WebDataset says where a sample's file lies, which may be elsewhere


class Canary:
    """Digest of an element: computed when it is asked for, or at once where the element can be changed.

    Args:
        element: what a source gave.
    """

    __slots__ = ("_digest", "_element", "_pending")

    def __init__(self, element: Any) -> None:
        self._pending = issubclass(type(element), _PLAIN)
        self._element = element if self._pending else None
        self._digest = None if self._pending else _digest(element)

    @classmethod
    def known(cls, digest: str) -> Canary:
        """Return the canary of an element of another run."""
        canary = cls(None)
        canary._pending, canary._digest = False, digest
        return canary

    @property
    def digest(self) -> str | None:
        """16 hexadecimal digits; None where the element cannot be digested."""
        if self._pending:
            self._digest, self._pending = _digest(self._element), False
            self._element = None
        return self._digest

    def fits(self, element: Any) -> bool:
        """Return whether an element may be the one that this is the canary of."""
        now = _digest(element)
        return None in (now, self.digest) or now == self.digest


def _digest(element: Any) -> str | None:
    return survive("an element of the source", lambda: _digested(element), None)


def _digested(element: Any) -> str:
    whole = hashlib.blake2b(digest_size=8, person=b"canary1")
    room = _BYTES
    for count, part in enumerate(_parts(element)):
        if count > _LEAVES or room <= 0:
            break
        whole.update(b"%d:" % len(part) + part[:room])
        room -= len(part)
    return whole.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    """Yield the structure of a value, and samples of its bytes, in one order."""
    kind = type(value)
    if issubclass(kind, (np.ndarray, np.generic)):
        yield from _array(np.asarray(value))
    elif _is_tensor(value):
        yield from _tensor(value)
    elif issubclass(kind, (str, bytes, bytearray)):
        yield b"text %d" % len(value)
        yield _excerpt(value)
    elif issubclass(kind, _PLAIN):
        yield f"{kind.__name__} {value!r}".encode()
    elif issubclass(kind, dict):
        yield b"dict %d" % len(value)
        for key, inner in value.items():
            yield from _parts(key)
            if key not in _PATHS:
                yield from _parts(inner)
    elif issubclass(kind, (list, tuple)):
        yield b"list %d" % len(value)
        for inner in value:
            yield from _parts(inner)
    else:
        yield qualname_of(kind).encode()


def _excerpt(text: str | bytes | bytearray) -> bytes:
    if isinstance(text, str):
        text = text if len(text) <= _BYTES // 2 else text[: _BYTES // 4] + text[-_BYTES // 4 :]
        return text.encode(errors="surrogatepass")
    return bytes(text if len(text) <= _BYTES // 2 else text[: _BYTES // 4] + text[-_BYTES // 4 :])


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
    dense = str(value.layout) == "torch.strided" and not value.is_quantized
    if value.device.type == "cpu" and dense:
        torch: Any = sys.modules["torch"]
        plain = value.detach()
        yield from _array((plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain).numpy())
