"""The storage of a store, with time limits for its operations."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, BinaryIO

from resumable._storage import Storage, open_url, storage_of
from resumable.checkpoint.limits import call, detach, left, limited, note, reporting, resolve
from resumable.errors import ConfigurationError
from resumable.failpoints import notice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["connect"]


def connect(
    root: str, options: Mapping[str, Any], timeout: float | None, *, shared: bool
) -> tuple[Storage, str, float]:
    """Return the filesystem of a root, the root's path on it, and the time limit of each operation in seconds.

    Raises:
        ConfigurationError: the root is a file, or an option is invalid.
        CheckpointError: the storage failed.
    """
    filesystem, path = open_url(root, options, f"root={root!r}")
    storage = LimitedStorage(storage_of(filesystem, left, note))
    notice("store.opened", root, filesystem, path)
    seconds = resolve(timeout, alone=storage.is_local and not shared)
    with limited(f"opening {root}", seconds):
        _refuse_file(storage, root, path)
    return storage, path.rstrip("/"), seconds


def _refuse_file(storage: Storage, root: str, path: str) -> None:
    with reporting(f"root={root!r} could not be opened"), contextlib.suppress(FileNotFoundError):
        try:
            is_file = storage.is_file(path)
        except NotADirectoryError:
            is_file = True
        if is_file:
            raise ConfigurationError(
                f"root={root!r} is a file or inside one, so checkpoints cannot be written there.\n"
                "Pass a directory. It is created if it does not exist."
            )


class LimitedStorage(Storage):
    """A storage with the same operations, under the current time limit."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage.filesystem)
        self._storage = storage
        self.is_local = storage.is_local

    def is_file(self, path: str) -> bool:
        return call(self._storage.is_file, path)

    def names(self, path: str) -> set[str]:
        return call(self._storage.names, path)

    def sizes(self, path: str) -> dict[str, int | None]:
        return call(self._storage.sizes, path)

    def size(self, path: str) -> int:
        return call(self._storage.size, path)

    def is_link(self, path: str) -> bool:
        return self.is_local and call(self._storage.is_link, path)

    def make_dir(self, path: str) -> None:
        call(self._storage.make_dir, path)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        inner = call(self._storage.create, path)
        file: Any = _LimitedFile(call(inner.__enter__))
        try:
            yield file
        except BaseException as error:
            leave = inner.__exit__, type(error), error, error.__traceback__
            if left() > 0:
                with contextlib.suppress(BaseException):  # the original error says more
                    call(*leave)
            else:
                detach(_quietly, *leave)
            raise
        call(inner.__exit__, None, None, None)

    def stage(self, path: str, temporary: str, data: bytes) -> Callable[[], None]:
        publish = call(self._storage.stage, path, temporary, data)
        return lambda: call(publish)

    def put(self, path: str, data: bytes) -> None:
        call(self._storage.put, path, data)

    def read(self, path: str) -> bytes:
        return call(self._storage.read, path)

    def fetch(self, path: str) -> BinaryIO:
        return call(self._storage.fetch, path, drop=lambda file: file.close())

    def remove(self, path: str) -> None:
        call(self._storage.remove, path)

    def remove_dir(self, path: str) -> None:
        call(self._storage.remove_dir, path)

    def settle(self, directory: str) -> None:
        call(self._storage.settle, directory)


class _LimitedFile:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: bytes) -> None:
        call(self._file.write, data)
        note(len(data))


def _quietly(function: Callable[..., Any], *args: Any) -> None:
    with contextlib.suppress(BaseException):
        function(*args)
