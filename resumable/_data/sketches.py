"""Sketches: some characters that tell a stored sample from others, and the same sample from nothing that is as good.

What is exact (structure, names, texts, integers) goes into a digest. Floating-point numbers go into one number, which
is compared with some tolerance: features that a script computes when it starts may differ in their last bits from
machine to machine. For files, that number is the size.
"""

from __future__ import annotations

import hashlib
import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable._data.leaves import File, leaves_of, spread
from resumable._introspection import qualname_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resumable._data.leaves import Leaf

__all__ = ["Sketch", "is_sketch", "sketches_of", "tells_apart"]

_VALUES = 64  # of an array
_TEXT = 2048
_WEIGHTS = np.cos(np.arange(997))  # so that the order of the numbers counts
_TOLERANCE = 0.01  # of the mean size of the numbers
_SHAPE = re.compile(r"[0-9a-f]{4}(~-?\d[\d.e+-]*)?")


class Sketch(NamedTuple):
    """What a sample is like.

    Args:
        digest: of what is exact, 4 hexadecimal digits.
        number: of what is not; None where there is nothing of that kind.
        scale: mean size of the numbers in it.
    """

    digest: str
    number: float | None
    scale: float

    @property
    def text(self) -> str:
        """As it stands in a state."""
        return self.digest if self.number is None else f"{self.digest}~{self.number:.4g}"

    def fits(self, text: str) -> bool:
        """Return whether a text may be the sketch of the same sample."""
        digest, _, number = text.partition("~")
        if digest != self.digest:
            return False
        if not number or self.number is None:
            return True
        return abs(float(number) - self.number) <= _TOLERANCE * self.scale + 1e-3 * abs(self.number)


def is_sketch(text: Any) -> bool:
    """Return whether a value of a state is a sketch."""
    return isinstance(text, str) and _SHAPE.fullmatch(text) is not None


def sketches_of(samples: Sequence[Any]) -> list[Sketch]:
    """Return a sketch of each sample."""
    return [_sketch(leaves) for leaves in leaves_of(samples)]


def tells_apart(samples: Sequence[Any]) -> bool:
    """Return whether not all of the samples are alike, without a look at files."""
    return len({_sketch(leaves, sized=False).text for leaves in leaves_of(samples)}) > 1


def _sketch(leaves: list[Leaf], *, sized: bool = True) -> Sketch:
    whole = hashlib.blake2b(digest_size=2, person=b"data1")
    numbers, sizes = list[float](), list[int | None]()
    for where, leaf in leaves:
        if type(leaf) is File:
            sizes.append(leaf.size if sized else None)
            leaf = leaf.name  # noqa: PLW2901  # the rest is exact
        for part in (where.encode(errors="surrogatepass"), *_exact(leaf, numbers)):
            whole.update(b"%d:" % len(part) + part)
    if sizes:
        known = [size for size in sizes if size is not None]
        total = float(sum(known)) if len(known) == len(sizes) else None
        return Sketch(whole.hexdigest(), total, total or 0.0)
    if not numbers:
        return Sketch(whole.hexdigest(), None, 0.0)
    values = np.array(numbers)
    values[~np.isfinite(values)] = 0.0
    weighed = values @ np.resize(_WEIGHTS, values.size)
    return Sketch(whole.hexdigest(), float(weighed) / values.size, float(np.abs(values).sum()) / values.size)


def _exact(leaf: Any, numbers: list[float]) -> Iterator[bytes]:
    """Yield what is exact of a leaf, and put the rest to the numbers."""
    if issubclass(type(leaf), (np.integer, np.floating, np.bool_)):
        leaf = leaf.item()
    kind = type(leaf)
    if issubclass(kind, (bool, int, type(None))):
        yield f"{leaf!r}".encode()
    elif issubclass(kind, (str, bytes, bytearray)):
        yield b"text %d" % len(leaf)
        yield _excerpt(leaf)
    elif issubclass(kind, float):
        numbers.append(leaf)
    elif issubclass(kind, (np.ndarray, np.generic)):
        yield from _array(np.asarray(leaf), numbers)
    elif (torch := sys.modules.get("torch")) is not None and issubclass(kind, torch.Tensor):
        yield f"{leaf.dtype} {tuple(leaf.shape)}".encode()
        if leaf.device.type == "cpu" and leaf.layout is torch.strided and not leaf.is_quantized:
            plain = leaf.detach()
            if plain.dtype in _unknown(torch):
                plain = plain.reshape(-1)[spread(plain.numel(), _VALUES)].float()
            yield from _array(plain.numpy(), numbers)
    else:
        yield qualname_of(kind).encode()


@cache
def _unknown(torch: Any) -> set[Any]:
    """Return the types of torch's numbers that NumPy has none for."""
    return {torch.bfloat16, *(getattr(torch, name) for name in dir(torch) if name.startswith("float8"))}


def _excerpt(text: str | bytes | bytearray) -> bytes:
    half = _TEXT // 2
    if isinstance(text, str):
        return (text if len(text) <= _TEXT else text[:half] + text[-half:]).encode(errors="surrogatepass")
    return bytes(text if len(text) <= _TEXT else text[:half] + text[-half:])


def _array(values: np.ndarray[Any, Any], numbers: list[float]) -> Iterator[bytes]:
    yield f"{values.dtype.str} {values.shape}".encode()
    some = (values.reshape(-1) if values.flags.c_contiguous else values.flat)[spread(values.size, _VALUES)]
    if values.dtype.hasobject:
        yield from (part for one in some.tolist() for part in _exact(one, numbers))
    else:
        yield from _values(some, numbers)


def _values(some: np.ndarray[Any, Any], numbers: list[float]) -> Iterator[bytes]:
    if some.dtype.kind == "f":
        numbers.extend(some.astype(np.float64).tolist())
    elif some.dtype.kind == "c":
        numbers.extend([*some.real.tolist(), *some.imag.tolist()])
    else:
        yield some.tobytes()
