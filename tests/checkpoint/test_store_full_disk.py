"""CheckpointStore on storage that fails while writing."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import stat
from typing import TYPE_CHECKING

import pytest
from stores import content, error_of, files, found, make_store

from resumable.checkpoint import CheckpointStore
from resumable.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return make_store(tmp_path / "run")


@contextlib.contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """Let the operating system refuse every byte of a file beyond `size`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("step", [3, 4])
@pytest.mark.parametrize("size", [0, 1, 100, 5_000, 20_000, 21_000])
def test_a_file_that_cannot_grow_leaves_everything_as_it_was(store: CheckpointStore, step: int, size: int) -> None:
    store, before = CheckpointStore(store.root, keep=1), files(store.root)
    with files_at_most(size), pytest.raises(CheckpointError, match=rf"(?s)step {step} was not saved.*Fix") as caught:
        store.save(step, content(step, 1))
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EFBIG
    assert files(store.root) == before
    store.save(step, content(step, 1))
    assert found(store.root) == (step, 1)
    assert store.steps() == [step]


@pytest.mark.parametrize(("number", "saved"), [(errno.EINVAL, True), (errno.ENOTSUP, True), (errno.EIO, False)])
def test_directory_that_cannot_be_synced(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, number: int, saved: bool
) -> None:
    """A directory that cannot be synced is an error only if it could be."""
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    assert (error_of(lambda: store.save(4, content(4))) is None) == saved
    assert found(store.root) == ((4, 0) if saved else (3, 0))
