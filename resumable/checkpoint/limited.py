"""The same files, where each operation ends when its time is up."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, BinaryIO

from resumable.checkpoint.files import Files
from resumable.checkpoint.limits import call, detach, left, note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["limited_files"]


def limited_files(files: Files) -> Files:
    """Return the same files with operations that are called under the limit that holds, if any does."""
    return _LimitedFiles(files)


class _LimitedFiles(Files):
    def __init__(self, files: Files) -> None:
        super().__init__(files.filesystem)
        self._files = files
        self.is_local = files.is_local

    def is_file(self, path: str) -> bool:
        return call(self._files.is_file, path)

    def names(self, path: str) -> set[str]:
        return call(self._files.names, path)

    def sizes(self, path: str) -> dict[str, int]:
        return call(self._files.sizes, path)

    def size(self, path: str) -> int:
        return call(self._files.size, path)

    def is_link(self, path: str) -> bool:
        return self.is_local and call(self._files.is_link, path)

    def make_dir(self, path: str) -> None:
        call(self._files.make_dir, path)

    @contextlib.contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        inner = call(self._files.create, path)
        file: Any = _LimitedFile(call(inner.__enter__))
        try:
            yield file
        except BaseException as error:
            leave = inner.__exit__, type(error), error, error.__traceback__
            if left() > 0:
                with contextlib.suppress(BaseException):  # the error that is on its way says more
                    call(*leave)
            else:
                detach(_quietly, *leave)
            raise
        call(inner.__exit__, None, None, None)

    def stage(self, path: str, temporary: str, data: bytes) -> Callable[[], None]:
        publish = call(self._files.stage, path, temporary, data)
        return lambda: call(publish)

    def put(self, path: str, data: bytes) -> None:
        call(self._files.put, path, data)

    def read(self, path: str) -> bytes:
        return call(self._files.read, path)

    def fetch(self, path: str) -> BinaryIO:
        return call(self._files.fetch, path, drop=lambda file: file.close())

    def remove(self, path: str) -> None:
        call(self._files.remove, path)

    def remove_dir(self, path: str) -> None:
        call(self._files.remove_dir, path)

    def settle(self, directory: str) -> None:
        call(self._files.settle, directory)


class _LimitedFile:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: bytes) -> None:
        call(self._file.write, data)
        note(len(data))


def _quietly(function: Callable[..., Any], *args: Any) -> None:
    with contextlib.suppress(BaseException):
        function(*args)
