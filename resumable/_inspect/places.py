"""Where a checkpoint is: a file or a folder, on a local disk or on whatever fsspec knows. It is only ever read."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from resumable._storage import open_url
from resumable.checkpoint.limits import in_one_line
from resumable.errors import CheckpointError, CheckpointNotFoundError, ResumableError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Place", "open_place"]


class Opened(contextlib.ExitStack):
    """The files that are open, each once."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, BinaryIO] = {}


@dataclass(frozen=True)
class Place:
    """A path on a filesystem.

    Args:
        filesystem: fsspec's.
        path: on it.
        opened: closes the files that tensors are read from.
    """

    filesystem: Any
    path: str
    opened: Opened

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    def child(self, name: str) -> Place:
        """Return a file or folder in this folder."""
        return Place(self.filesystem, f"{self.path.rstrip('/')}/{name}", self.opened)

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
        """Return the bytes of the file, or some of them."""
        file = self.open()
        file.seek(offset)
        return bytes(file.read() if length is None else file.read(length))

    def open(self) -> BinaryIO:
        """Open the file until the whole checkpoint is closed."""
        files = self.opened.files
        if self.path not in files:
            files[self.path] = self.opened.enter_context(self.filesystem.open(self.path, "rb"))
        return files[self.path]


@contextlib.contextmanager
def open_place(path: str | os.PathLike[str]) -> Iterator[Place]:
    """Find a path or URL; what was opened of it is closed at the end.

    Raises:
        ConfigurationError: a URL that fsspec does not know.
        MissingDependencyError: the filesystem's package is not installed.
        CheckpointNotFoundError: nothing is there.
        CheckpointError: it cannot be read.
    """
    url = os.fspath(path)
    try:
        filesystem, inside = open_url(url, what=repr(url))
        with Opened() as opened:
            if not url or not filesystem.exists(inside):  # without one it would be the working directory
                raise CheckpointNotFoundError(  # noqa: TRY301  # ours are told apart below
                    f"there is nothing at {url or repr(url)}.\nGive a checkpoint: a file, a folder or a URL."
                )
            yield Place(filesystem, inside, opened)
    except ResumableError:
        raise
    except Exception as error:  # cloud clients raise errors of their own
        raise CheckpointError(
            f"{url} could not be read.\n  {in_one_line(error)}\nLook whether it may be read, and try again."
        ) from error
