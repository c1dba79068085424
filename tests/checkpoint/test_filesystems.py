"""Operations on filesystems: requests end in time, and listings hold only the entries of a directory."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from resumable._storage import storage_of
from resumable.checkpoint.files import connect
from resumable.checkpoint.limits import TimeUpError, limited


class Hanging(AsyncFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A server that takes requests and never answers."""

    protocol = "hanging"
    cancelled = threading.Event()

    async def _info(self, path: str, **_: Any) -> Any:
        raise FileNotFoundError(path)

    async def _pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


class Listing(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Lists a directory in itself, as object stores do that hold a placeholder for it."""

    protocol = "listing"

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        found = super().ls(path, detail=True, **options)
        own = {"name": self._strip_protocol(path), "size": 0, "type": "directory"}
        return [own, *found] if detail else [own["name"], *(one["name"] for one in found)]


def test_late_publishing_is_cancelled() -> None:
    """A request that publishes is cancelled when the time is up.

    Otherwise a retry of the client could write a marker minutes later.
    """
    fsspec.register_implementation("hanging", Hanging, clobber=True)
    storage, path, _ = connect("hanging://root", {}, 10, shared=False)
    with limited("saving", 0.5):
        publish = storage.stage(f"{path}/COMMIT.json", f"{path}/temporary", b"{}")
        with pytest.raises(TimeUpError):
            publish()
    assert Hanging.cancelled.wait(5)


def test_a_directory_is_not_an_entry_of_itself() -> None:
    filesystem = Listing()
    filesystem.pipe_file("/root/a", b"abc")
    filesystem.pipe_file("/root/below/b", b"")
    assert storage_of(filesystem).sizes("/root/") == {"a": 3, "below": None}
    assert storage_of(filesystem).sizes("/missing") == {}
