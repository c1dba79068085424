"""Paths of checkpoints, and the values found in them.

A checkpoint is a file or a folder, on a local disk or on any fsspec filesystem. It is only read. The values found are
inert: dicts, lists and numbers are unchanged, and everything else becomes a stand-in.

Tensor    shape and type; the numbers are read on demand
Opaque    an object whose class is not imported: its class name and its arguments
File      a file that is not part of a readable checkpoint
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO

from resumable import _content
from resumable._storage import open_url
from resumable.checkpoint.limits import in_one_line
from resumable.errors import CheckpointError, CheckpointNotFoundError, ResumableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

__all__ = ["DTYPES", "CheckpointPath", "File", "Name", "Opaque", "Tensor", "children", "open_path", "walk"]


@contextlib.contextmanager
def open_path(path: str | os.PathLike[str]) -> Iterator[CheckpointPath]:
    """Find a path or URL; files opened from it are closed at the end.

    Raises:
        ConfigurationError: fsspec does not know the URL.
        MissingDependencyError: the filesystem's package is not installed.
        CheckpointNotFoundError: nothing exists there.
        CheckpointError: it cannot be read.
    """
    url = os.fspath(path)
    try:
        filesystem, inside = open_url(url, what=repr(url))
        with Opened() as opened:
            if not url or not filesystem.exists(inside):  # an empty path would be the working directory
                raise CheckpointNotFoundError(  # noqa: TRY301  # passes through `except ResumableError`
                    f"{url or repr(url)} does not exist.\nPass a checkpoint: a file, a folder or a URL."
                )
            yield CheckpointPath(filesystem, inside, opened)
    except ResumableError:
        raise
    except Exception as error:  # cloud clients raise their own errors
        raise CheckpointError(
            f"{url} could not be read.\n  {in_one_line(error)}\nCheck that you have access, and try again."
        ) from error


@dataclass(frozen=True)
class CheckpointPath:
    """A path on a filesystem.

    Args:
        filesystem: fsspec's.
        path: on the filesystem.
        opened: closes the files from which tensors are read.
    """

    filesystem: Any
    path: str
    opened: Opened

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def is_local(self) -> bool:
        """Whether the file has a path that other libraries can open."""
        return "file" in self.filesystem.protocol

    def child(self, name: str) -> CheckpointPath:
        """Return a file or folder in this folder."""
        return CheckpointPath(self.filesystem, f"{self.path.rstrip('/')}/{name}", self.opened)

    def children(self) -> dict[str, Any]:
        """Return the names in this folder, each with the size of a file, or None for a folder."""
        entries = self.filesystem.ls(self.path, detail=True)
        here = self.path.rstrip("/")
        sizes = {
            str(entry["name"]).rstrip("/").rpartition("/")[2]: None if entry["type"] == "directory" else entry["size"]
            for entry in entries
            if str(entry["name"]).rstrip("/") != here  # object stores list a folder in itself
        }
        return dict(sorted(sizes.items()))

    def is_folder(self) -> bool:
        """Return whether it is a folder."""
        return bool(self.filesystem.info(self.path)["type"] == "directory")

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return int(self.filesystem.info(self.path)["size"])

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of the file, or a range of them."""
        file = self.open()
        file.seek(offset)
        return bytes(file.read() if length is None else file.read(length))

    def open(self) -> BinaryIO:
        """Open the file; it stays open until the checkpoint is closed."""
        files = self.opened.files
        if self.path not in files:
            files[self.path] = self.opened.enter_context(self.filesystem.open(self.path, "rb"))
        return files[self.path]


class Opened(contextlib.ExitStack):
    """The open files, each opened once."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, BinaryIO] = {}


# PyTorch's name -> bytes per element, and NumPy's name; types that NumPy lacks are compared as bits
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


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor whose numbers stay in the file until `read` is called.

    Args:
        shape: its shape.
        dtype: PyTorch's name of its type.
        read: returns its numbers as an array of this shape; types that NumPy lacks become unsigned integers.
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
    """An object of a class that was not imported. It can be a dict key, and equals only itself."""

    kind: str
    args: Any = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)
    pairs: dict[Any, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{self.kind}>"


@dataclass(frozen=True)
class Name:
    """The name of a class or function that was not imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class File:
    """A file in a folder, of which only the size is known.

    Args:
        size: in bytes.
        why: the problem; empty if it is not a checkpoint at all.
    """

    size: int
    why: str = ""


_DEEPEST = 200


def walk(value: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield every part of a tree with its path, in order; a part with several paths is visited once.

    A tree crafted to be endless, or to grow with every level, takes no longer to walk than to read.
    """
    seen: set[int] = set()

    def read(path: tuple[Any, ...], part: Any, depth: int) -> Any:
        if id(part) in seen or depth > _DEEPEST:
            return (part,), ()
        seen.add(id(part))
        return (part,), [((*path, key), inner) for key, inner in children(part)]

    return _content.walk(value, read, path=())


def children(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the parts of a container with their keys; nothing for other values."""
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list | tuple):
        yield from enumerate(value)
    elif isinstance(value, Opaque):
        yield from _children_of_object(value)


def _children_of_object(value: Opaque) -> Iterator[tuple[Any, Any]]:
    """Yield the parts of an object under their attribute names, or as stored in the file if they have none."""
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
    """Return whether the state is a pair of attributes in a dict, if any, and attributes in slots."""
    pair = isinstance(state, tuple) and len(state) == 2  # noqa: PLR2004
    return pair and isinstance(state[1], dict) and isinstance(state[0], dict | None)
