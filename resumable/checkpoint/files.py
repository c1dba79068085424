"""The few operations on files that a store needs, on local disks and on whatever fsspec knows."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from resumable._durable import sync_directory
from resumable.checkpoint.reports import reporting
from resumable.errors import ConfigurationError, MissingDependencyError
from resumable.failpoints import notice, point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["CHUNK", "Files", "connect", "find_filesystem"]

CHUNK = 8 << 20  # bytes handed to the filesystem at once, so that a remote file never buffers a whole tensor


def connect(root: str, options: Mapping[str, Any]) -> tuple[Files, str]:
    """Find the filesystem of a root and the root's path on it; the root may not be a file."""
    from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415 - only a store needs it

    filesystem, path = find_filesystem(root, options, f"root={root!r}")
    notice("store.opened", root, filesystem, path)
    _refuse_file(filesystem, root, path)
    return (_LocalFiles if isinstance(filesystem, LocalFileSystem) else Files)(filesystem), path.rstrip("/")


def find_filesystem(url: str, options: Mapping[str, Any], what: str) -> tuple[Any, str]:
    """Find the filesystem of a path or URL, and the path on it.

    Args:
        url: local path, or any URL that fsspec knows.
        options: passed to the filesystem.
        what: the URL, for messages.

    Raises:
        MissingDependencyError: the filesystem's package is not installed.
        ConfigurationError: a protocol that fsspec does not know.
    """
    from fsspec.core import url_to_fs  # noqa: PLC0415 - only a store needs it

    try:
        filesystem, path = url_to_fs(url, **options)
    except ImportError as error:
        install = f"pip install 'fsspec[{url.partition('://')[0].rpartition('::')[2]}]'"
        raise MissingDependencyError(f"{url} needs a package that is missing. {error}: {install}") from error
    except ValueError as error:
        raise ConfigurationError(
            f"{what} cannot be opened: {error}.\nUse a local path, or a URL that fsspec knows, such as s3://, "
            "gs:// or memory://. Other protocols come with a package of their own: install that first."
        ) from error
    return filesystem, path


def _refuse_file(filesystem: Any, root: str, path: str) -> None:
    with reporting(f"root={root!r} could not be looked up"), contextlib.suppress(FileNotFoundError):
        try:
            is_file = filesystem.info(path)["type"] == "file"  # its own `isfile` takes every error for a no
        except NotADirectoryError:
            is_file = True
        if is_file:
            raise ConfigurationError(
                f"root={root!r} is a file, or is below one, so no checkpoint could be written under it.\n"
                "Give a directory; it is made when it does not exist."
            )


class Files:
    """Files of any fsspec filesystem, which makes durable what it has acknowledged."""

    def __init__(self, filesystem: Any) -> None:
        self.filesystem = filesystem

    def names(self, path: str) -> set[str]:
        """Give the names in a directory; none if it does not exist. Other errors are raised: they are no emptiness."""
        self.filesystem.invalidate_cache(path)
        try:
            return {name.rstrip("/").rpartition("/")[2] for name in self.filesystem.ls(path, detail=False)}
        except FileNotFoundError:
            return set()

    def size(self, path: str) -> int:
        """Give the size of a file in bytes."""
        return int(self.filesystem.info(path)["size"])

    def make_dir(self, path: str) -> None:
        """Make a directory and those above it, where they do not exist."""
        self.filesystem.makedirs(path, exist_ok=True)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Open a new file for writing; it is durable when the block is left."""
        with self.filesystem.open(path, "wb") as file:
            yield file

    def stage(self, path: str, temporary: str, data: bytes) -> Callable[[], None]:
        """Give a function that puts `data` at `path` in one step, so that readers see the old bytes or the new."""
        del temporary  # an object store's put has no visible middle
        return functools.partial(self.filesystem.pipe_file, path, data)

    def read(self, path: str) -> bytes:
        """Give the bytes of a small file."""
        return bytes(self.filesystem.cat_file(path))

    def fetch(self, path: str) -> BinaryIO:
        """Open a file for reading, downloaded once, so that the bytes compared are the bytes unpickled."""
        with self.filesystem.open(path, "rb") as source, contextlib.ExitStack() as on_error:
            copy = on_error.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(source, copy, CHUNK)
            on_error.pop_all()
            return copy

    def remove(self, path: str) -> None:
        """Remove a file; one that is gone already is no error."""
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.rm_file(path)

    def remove_dir(self, path: str) -> None:
        """Remove a directory if it is empty, and exists, and the filesystem has directories."""
        with contextlib.suppress(Exception):
            self.filesystem.rmdir(path)

    def settle(self, directory: str) -> None:
        """Make the names in a directory durable; object stores do so with each request."""


class _LocalFiles(Files):
    """The same on local files, with an fsync wherever a later operation relies on an earlier one."""

    def names(self, path: str) -> set[str]:
        try:
            return set(os.listdir(path))  # noqa: PTH208 - names are needed, not paths
        except FileNotFoundError:
            return set()

    def make_dir(self, path: str) -> None:
        directory = Path(path)
        if not directory.parent.is_dir():
            self.make_dir(str(directory.parent))
        directory.mkdir(exist_ok=True)
        self.settle(str(directory.parent))

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        with Path(path).open("xb") as file:
            yield file
            file.flush()
            point("store.written", path)
            os.fsync(file.fileno())
        point("store.synced", path)

    def stage(self, path: str, temporary: str, data: bytes) -> Callable[[], None]:
        with self.create(temporary) as file:
            file.write(data)
        self.settle(str(Path(path).parent))
        return functools.partial(self._publish, temporary, path)

    def _publish(self, temporary: str, path: str) -> None:
        point("store.rename", path)
        Path(temporary).replace(path)
        point("store.renamed", path)
        self.settle(str(Path(path).parent))

    def fetch(self, path: str) -> BinaryIO:
        return Path(path).open("rb")

    def settle(self, directory: str) -> None:
        sync_directory(directory)
