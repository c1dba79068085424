"""Digests of stored elements: a few characters that distinguish a sample, with a number for values that are rounded.

Exact values (structure, names, texts, integers) go into a digest. Floating-point numbers go into one number, which is
compared with a tolerance: the last bits of features that a script computes may differ between machines. For files, the
number is the size.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
from dataclasses import fields
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable._content.arrays import has_plain_numbers
from resumable._content.leaves import excerpt, walk
from resumable._introspection import ask, qualname_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "ElementDigest",
    "MixtureSample",
    "element_digests",
    "is_element_digest",
    "leaves_of_samples",
    "names_a_file",
    "spread",
    "tells_apart",
]

Leaf = tuple[str, Any]  # path in the sample, and value

_MOST = 64  # entries of a list to read
_FEW = 8  # entries up to which each has its own meaning, as in a pair
_DEEPEST = 6
_LONGEST = 1024
_SEPARATOR = re.compile(r"[/\\]")
_FILE = re.compile(r"[^\s/\\]+\.[A-Za-z0-9]{1,5}")
_VALUES = 64  # of an array
_WEIGHTS = np.cos(np.arange(997))  # so the order of the numbers counts
_TOLERANCE = 0.01  # relative to the mean size of the numbers
_SHAPE = re.compile(r"[0-9a-f]{4}(~-?\d[\d.e+-]*)?")


class File(NamedTuple):
    """A file: its name below the folder that all files share, and its path."""

    name: str
    path: str

    @property
    def size(self) -> int | None:
        """Its size; None if there is no such file, or it is empty."""
        try:
            found = os.stat(self.path)  # noqa: PTH116  # works with any string
        except (OSError, ValueError):
            return None
        return found.st_size or None if stat.S_ISREG(found.st_mode) else None


class MixtureSample(NamedTuple):
    """A sample from one of several datasets, each with its files in a separate folder."""

    number: int
    value: Any


class ElementDigest(NamedTuple):
    """Digest of a stored sample.

    Args:
        digest: of the exact values, 4 hexadecimal digits.
        number: from the rounded values; None if there are none.
        scale: mean size of the numbers in it.
    """

    digest: str
    number: float | None
    scale: float

    @property
    def text(self) -> str:
        """The text in a state."""
        return self.digest if self.number is None else f"{self.digest}~{self.number:.4g}"

    def fits(self, text: str) -> bool:
        """Return whether a text may be the digest of the same sample."""
        digest, _, number = text.partition("~")
        if digest != self.digest:
            return False
        if not number or self.number is None:
            return True
        return abs(float(number) - self.number) <= _TOLERANCE * self.scale + 1e-3 * abs(self.number)

    def is_close(self, other: ElementDigest) -> bool:
        """Return whether two hosts may have read the same sample, with features that differ in their last bits."""
        difference = abs((self.number or 0.0) - (other.number or 0.0))
        return self.digest == other.digest and difference <= _TOLERANCE * max(self.scale, other.scale)


def is_element_digest(text: Any) -> bool:
    """Return whether a value of a state is the digest of an element."""
    return isinstance(text, str) and _SHAPE.fullmatch(text) is not None


def element_digests(samples: Sequence[Any]) -> list[ElementDigest]:
    """Return a digest of each sample."""
    return [_digest(leaves) for leaves in leaves_of_samples(samples)]


def tells_apart(samples: Sequence[Any]) -> bool:
    """Return whether not all of the samples are the same, without reading files."""
    return len({_digest(leaves, sized=False).text for leaves in leaves_of_samples(samples)}) > 1


def _digest(leaves: list[Leaf], *, sized: bool = True) -> ElementDigest:
    whole = hashlib.blake2b(digest_size=2, person=b"data1")
    numbers, sizes = list[float](), list[int | None]()
    for where, leaf in leaves:
        if type(leaf) is File:
            sizes.append(leaf.size if sized else None)
            leaf = leaf.name  # noqa: PLW2901  # exact
        for part in (where.encode(errors="surrogatepass"), *_exact(leaf, numbers)):
            whole.update(b"%d:" % len(part) + part)
    if sizes:
        known = [size for size in sizes if size is not None]
        total = float(sum(known)) if len(known) == len(sizes) else None
        return ElementDigest(whole.hexdigest(), total, total or 0.0)
    if not numbers:
        return ElementDigest(whole.hexdigest(), None, 0.0)
    values = np.array(numbers)
    values[~np.isfinite(values)] = 0.0
    weighed = values @ np.resize(_WEIGHTS, values.size)
    return ElementDigest(whole.hexdigest(), float(weighed) / values.size, float(np.abs(values).sum()) / values.size)


def _exact(leaf: Any, numbers: list[float]) -> Iterator[bytes]:
    """Yield the exact values of a leaf, and add the others to the numbers."""
    if issubclass(type(leaf), (np.integer, np.floating, np.bool_)):
        leaf = leaf.item()
    kind = type(leaf)
    if issubclass(kind, (bool, int, type(None))):
        yield f"{leaf!r}".encode()
    elif issubclass(kind, (str, bytes, bytearray)):
        yield b"text %d" % len(leaf)
        yield excerpt(leaf)
    elif issubclass(kind, float):
        numbers.append(leaf)
    elif issubclass(kind, (np.ndarray, np.generic)):
        yield from _array(np.asarray(leaf), numbers)
    elif (torch := sys.modules.get("torch")) is not None and issubclass(kind, torch.Tensor):
        yield f"{leaf.dtype} {tuple(leaf.shape)}".encode()
        if has_plain_numbers(leaf):
            plain = leaf.detach()
            if plain.dtype in _unknown(torch):
                plain = plain.reshape(-1)[spread(plain.numel(), _VALUES)].float()
            yield from _array(plain.numpy(), numbers)
    else:
        yield qualname_of(kind).encode()


@cache
def _unknown(torch: Any) -> set[Any]:
    """Return PyTorch's number types that NumPy does not have."""
    return {torch.bfloat16, *(getattr(torch, name) for name in dir(torch) if name.startswith("float8"))}


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


def leaves_of_samples(samples: Sequence[Any]) -> list[list[Leaf]]:
    """Return the leaves of each sample, with files instead of their paths.

    Lists, tuples, dicts and dataclasses with the same entries have the same leaves. A list of samples may change
    between these types, for example if a script computes it in its first run, and reads it from a file in the next.

    Paths at the same position of several samples lose their common folder, so you can move that folder.
    """
    taken = [list(walk(sample, _read)) for sample in samples]
    paths: dict[str, list[str]] = {}
    for where, leaf in (one for leaves in taken for one in leaves):
        if _has_folder(leaf):
            paths.setdefault(where, []).append(_path_of(leaf))
    shared = {where: _shared(some) for where, some in paths.items()}
    return [[(where, _as_file(leaf, shared.get(where, 0))) for where, leaf in leaves] for leaves in taken]


def names_a_file(leaf: Any) -> bool:
    """Return whether a leaf looks like the name of a file."""
    if issubclass(type(leaf), (File, PurePath)):
        return True
    return (
        issubclass(type(leaf), str)
        and len(leaf) <= _LONGEST
        and (_has_folder(leaf) or _FILE.fullmatch(leaf) is not None)
    )


def spread(length: int, most: int) -> list[int]:
    """Return at most `most` positions of a sequence, spread over it and including both ends."""
    last = max(most - 1, 1)
    return list(range(length)) if length <= most else [number * (length - 1) // last for number in range(most)]


def _read(where: str, value: Any, depth: int) -> tuple[tuple[Any, ...], Sequence[Leaf]]:
    kind = type(value)
    if kind is MixtureSample:
        return (), [(f"{where}#{value.number}", value.value)]
    if depth >= _DEEPEST:
        return (qualname_of(kind),), ()
    if issubclass(kind, dict):
        return (len(value),), [(f"{where}.{key}", value[key]) for key in sorted(value, key=str)[:_MOST]]
    if issubclass(kind, (list, tuple)):
        few = len(value) <= _FEW
        return (len(value),), [(f"{where}.{at if few else ''}", value[at]) for at in spread(len(value), _MOST)]
    if ask(kind, "__dataclass_fields__") is not None:
        names = sorted(one.name for one in fields(kind))
        return (len(names),), [(f"{where}.{name}", ask(value, name)) for name in names]
    return (value,), ()


def _has_folder(leaf: Any) -> bool:
    if issubclass(type(leaf), PurePath):
        return True
    return issubclass(type(leaf), str) and len(leaf) <= _LONGEST and _SEPARATOR.search(leaf) is not None


def _path_of(leaf: str | os.PathLike[str]) -> str:
    """Return a path; for a URL, only the part before a question mark, because a signature changes with each run."""
    path = os.fspath(leaf)
    return path.partition("?")[0] if "://" in path else path


def _shared(paths: list[str]) -> int:
    """Return how many leading folders all of the paths share."""
    folders = [_SEPARATOR.split(path)[:-1] for path in paths]
    first, last = min(folders), max(folders)
    return next(
        (number for number, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first)
    )


def _as_file(leaf: Any, shared: int) -> Any:
    if not names_a_file(leaf):
        return leaf
    path = _path_of(leaf)
    return File("/".join(_SEPARATOR.split(path)[shared:]), path)
