"""What is found in a checkpoint, as inert values: dicts, lists and numbers as they are, and a stand-in for all else.

Tensor    shape and type; its numbers are read when they are asked for
Opaque    an object of a class that is not imported: its name, and what would have been given to it
File      a file that is no part of a checkpoint that could be read
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from resumable import _content

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

__all__ = ["DTYPES", "File", "Name", "Opaque", "Tensor", "children", "walk"]

_DEEPEST = 200

# torch's name -> bytes of an element, and NumPy's name; what NumPy lacks is compared as the bits that it is
DTYPES: dict[str, tuple[int, str]] = {
    "float64": (8, "f8"),
    "float32": (4, "f4"),
    "float16": (2, "f2"),
    "bfloat16": (2, "u2"),
    "int64": (8, "i8"),
    "int32": (4, "i4"),
    "int16": (2, "i2"),
    "int8": (1, "i1"),
    "uint64": (8, "u8"),
    "uint32": (4, "u4"),
    "uint16": (2, "u2"),
    "uint8": (1, "u1"),
    "bool": (1, "u1"),
    "complex128": (16, "c16"),
    "complex64": (8, "c8"),
    **{f"float8_{kind}": (1, "u1") for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")},
}


@dataclass(frozen=True)
class Name:
    """The name of a class or function, of which nothing was imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor whose numbers stay in the file until `read` is called.

    Args:
        shape: its shape.
        dtype: its type, by torch's name.
        read: gives its numbers as an array of this shape; those of types that NumPy lacks as unsigned integers.
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], NDArray[Any]] = field(repr=False)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * DTYPES[self.dtype][0] if self.dtype in DTYPES else 0


@dataclass(eq=False)
class Opaque:
    """An object of a class that was not imported. It is a key, where it was one, and equal to nothing else."""

    kind: str
    args: Any = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)
    pairs: dict[Any, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{self.kind}>"


@dataclass(frozen=True)
class File:
    """A file of a folder, of which only the size is known.

    Args:
        size: in bytes.
        why: what was wrong with it; empty where it is no checkpoint at all.
    """

    size: int
    why: str = ""


def children(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the parts of a container, each with its key; none of anything else."""
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)
    elif isinstance(value, Opaque):
        yield from _children_of_object(value)


def _children_of_object(value: Opaque) -> Iterator[tuple[Any, Any]]:
    """Yield what is in an object under the names that it has there; what has none, as it stands in the file."""
    if value.args:
        yield "args", value.args
    yield from enumerate(value.items)
    yield from value.pairs.items()
    if isinstance(value.state, dict) and not value.pairs:
        yield from value.state.items()
    elif _has_slots(value.state):
        for part in value.state:
            yield from (part or {}).items()
    elif value.state:
        yield "state", value.state


def _has_slots(state: Any) -> bool:
    """Return whether attributes are those of a dict, if there is one, and those in slots."""
    pair = isinstance(state, tuple) and len(state) == 2  # noqa: PLR2004
    return pair and isinstance(state[1], dict) and isinstance(state[0], dict | None)


def walk(value: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield every part of a tree with its path, in order; what stands at several places, with all its parts once.

    A tree that was made to be endless, or to grow with every level, is gone through in the time of reading it.
    """
    seen: set[int] = set()

    def read(path: tuple[Any, ...], part: Any, depth: int) -> Any:
        if id(part) in seen or depth > _DEEPEST:
            return (part,), ()
        seen.add(id(part))
        return (part,), [((*path, key), inner) for key, inner in children(part)]

    return _content.walk(value, read, path=())
