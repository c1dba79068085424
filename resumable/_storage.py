"""Files on local disks and on fsspec filesystems: the few operations that checkpoints and sources need."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from resumable._durable import CHUNK, create, publish, sync_directory
from resumable._requirements import check_version
from resumable.errors import ConfigurationError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["LocalStorage", "Storage", "open_url", "storage_of"]


def open_url(url: str, options: Mapping[str, Any] | None = None, what: str = "") -> tuple[Any, str]:
    """Find the filesystem of a path or URL, and the path on it.

    Args:
        url: a local path, or any URL that fsspec knows.
        options: for the filesystem.
        what: the URL, for messages.

    Raises:
        MissingDependencyError: the filesystem's package is not installed, or fsspec is too old.
        ConfigurationError: fsspec does not know the protocol.
    """
    check_version("fsspec")
    from fsspec.core import url_to_fs  # noqa: PLC0415 - slow, and local sources need no fsspec

    try:
        filesystem, path = url_to_fs(url, **(options or {}))
    except ImportError as error:
        install = f"pip install 'fsspec[{url.partition('://')[0].rpartition('::')[2]}]'"
        raise MissingDependencyError(
            f"{url} needs a package that is missing: {error}.\nInstall it: {install}"
        ) from error
    except ValueError as error:
        raise ConfigurationError(
            f"{what or url} cannot be opened: {error}.\nUse a local path, or a URL that fsspec knows, such as s3://, "
            "gs:// or https://. Other protocols need a separate package; install it first."
        ) from error
    return filesystem, path


def storage_of(
    filesystem: Any, left: Callable[[], float] | None = None, note: Callable[[int], object] | None = None
) -> Storage:
    """Return the operations on a filesystem.

    Args:
        filesystem: fsspec's.
        left: returns the seconds that a request may take.
        note: called with the number of bytes of each downloaded piece.
    """
    from fsspec.implementations.local import LocalFileSystem  # noqa: PLC0415 - slow, as above

    return LocalStorage(filesystem) if isinstance(filesystem, LocalFileSystem) else Storage(filesystem, left, note)


class Storage:
    """Files on any fsspec filesystem; its writes are durable once they return."""

    is_local = False

    def __init__(
        self, filesystem: Any, left: Callable[[], float] | None = None, note: Callable[[int], object] | None = None
    ) -> None:
        self.filesystem, self._left, self._note = filesystem, left, note

    def is_file(self, path: str) -> bool:
        """Return whether a path is a file; the filesystem's own `isfile` turns every error into False."""
        return bool(self.filesystem.info(path)["type"] == "file")

    def names(self, path: str) -> set[str]:
        """Return the names in a directory; none if it does not exist. Other errors are raised."""
        self.filesystem.invalidate_cache(path)
        try:
            return {name.rstrip("/").rpartition("/")[2] for name in self.filesystem.ls(path, detail=False)}
        except FileNotFoundError:
            return set()

    def sizes(self, path: str) -> dict[str, int | None]:
        """Return the names in a directory with the size of each file, None for directories; empty if it is missing."""
        here = path.rstrip("/")
        self.filesystem.invalidate_cache(here)
        with contextlib.suppress(FileNotFoundError):
            found = [(str(one["name"]).rstrip("/"), one) for one in self.filesystem.ls(here or path, detail=True)]
            return {
                name.rpartition("/")[2]: None if one["type"] == "directory" else int(one["size"] or 0)
                for name, one in found
                if name != here  # object stores list a directory in itself
            }
        return {}

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        return int(self.filesystem.info(path)["size"])

    def is_link(self, path: str) -> bool:
        """Return whether a path is a symbolic link, which points to data outside this directory."""
        del path  # object stores have none
        return False

    def make_dir(self, path: str) -> None:
        """Create a directory and its parents, unless they exist."""
        self.filesystem.makedirs(path, exist_ok=True)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """Open a new file for writing. It is durable when the block exits, and discarded if the block fails."""
        file = self.filesystem.open(path, "wb")
        try:
            yield file
            file.close()
        except BaseException:
            _throw_away(file)
            raise

    def stage(self, path: str, temporary: str, data: bytes) -> Callable[[], None]:
        """Return a function that puts `data` at `path` atomically; readers see the old bytes or the new ones."""
        del temporary  # an object store's put is atomic
        return functools.partial(self.put, path, data)

    def put(self, path: str, data: bytes) -> None:
        """Write a small file atomically; if the filesystem can, cancel the request when the time is up."""
        filesystem, seconds = self.filesystem, self._left() if self._left else math.inf
        if math.isinf(seconds) or not getattr(filesystem, "async_impl", False) or filesystem.asynchronous:
            filesystem.pipe_file(path, data)
            return
        from fsspec.asyn import sync  # noqa: PLC0415 - only a store needs it

        # An abandoned request could otherwise arrive minutes later, after another save was committed.
        sync(filesystem.loop, filesystem._pipe_file, path, data, timeout=max(seconds, 1e-3))  # noqa: SLF001 - documented

    def read(self, path: str) -> bytes:
        """Return the bytes of a small file."""
        return bytes(self.filesystem.cat_file(path))

    def fetch(self, path: str) -> BinaryIO:
        """Open a file for reading, downloaded once, so the bytes that are checked are the bytes that are unpickled."""
        with self.filesystem.open(path, "rb") as source, contextlib.ExitStack() as on_error:
            copy = on_error.enter_context(tempfile.TemporaryFile())
            while piece := source.read(CHUNK):
                copy.write(piece)
                if self._note:
                    self._note(len(piece))
            on_error.pop_all()
            return copy

    def remove(self, path: str) -> None:
        """Remove a file, unless it is already gone."""
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.rm_file(path)

    def remove_dir(self, path: str) -> None:
        """Remove a directory if it exists and is empty, and the filesystem has directories."""
        with contextlib.suppress(Exception):
            self.filesystem.rmdir(path)

    def settle(self, directory: str) -> None:
        """Make the names in a directory durable; object stores do so with each request."""


def _throw_away(file: Any) -> None:
    """Discard a file that is open for writing. Closing it, or collecting it, would complete a multipart upload."""
    from fsspec.spec import AbstractBufferedFile  # noqa: PLC0415 - only a store needs it

    with contextlib.suppress(Exception):
        if isinstance(file, AbstractBufferedFile):
            file.closed = True
            file.discard()
        else:
            file.close()


class LocalStorage(Storage):
    """The same for local files, with an fsync wherever a later operation relies on an earlier one."""

    is_local = True

    def names(self, path: str) -> set[str]:
        try:
            return set(os.listdir(path))  # noqa: PTH208 - names are needed, not paths
        except FileNotFoundError:
            return set()

    def sizes(self, path: str) -> dict[str, int | None]:
        with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
            return {entry.name: None if entry.is_dir() else entry.stat().st_size for entry in entries}
        return {}

    def is_link(self, path: str) -> bool:
        return Path(path).is_symlink()

    def make_dir(self, path: str) -> None:
        directory = Path(path)
        if not directory.parent.is_dir():
            self.make_dir(str(directory.parent))
        directory.mkdir(exist_ok=True)
        self.settle(str(directory.parent))

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        with create(Path(path)) as file:
            yield file

    def stage(self, path: str, temporary: str, data: bytes) -> Callable[[], None]:
        with self.create(temporary) as file:
            file.write(data)
        self.settle(str(Path(path).parent))
        return functools.partial(publish, Path(temporary), Path(path))

    def put(self, path: str, data: bytes) -> None:
        """Overwrite a file of the same length in place, so it is never empty."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def fetch(self, path: str) -> BinaryIO:
        return Path(path).open("rb")

    def settle(self, directory: str) -> None:
        sync_directory(directory)
