"""CheckpointStore: what stays for ever, what is never removed, time limits on local files, and who may write."""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from stores import PROJECT, content, files, make_store

from resumable import _durable, _storage
from resumable.checkpoint import CheckpointStore, limits, steps
from resumable.checkpoint.steps import LENGTH, TOKEN
from resumable.errors import CheckpointError, CheckpointTimeoutError, ConfigurationError, WriterFencedError

# ---------------------------------------------------------------------- keep_every


def test_every_nth_step_stays_for_ever_besides_the_newest(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2, keep_every=10)
    for step in range(0, 41, 4):
        store.save(step, {"step": step})
    assert store.steps() == [0, 20, 32, 36, 40]
    CheckpointStore(tmp_path, keep=1).save(41, {})
    assert store.steps() == [41], "another `keep_every` is another choice"


@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True])
def test_keep_every_is_a_positive_number_and_needs_keep(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ConfigurationError, match="keep_every"):
        CheckpointStore(tmp_path, keep=1, keep_every=value)
    with pytest.raises(ConfigurationError, match=r"(?s)keep_every=3 .*without `keep`"):
        CheckpointStore(tmp_path, keep_every=3)


# ---------------------------------------------------------------------- symbolic links


@pytest.fixture
def linked(tmp_path: Path) -> tuple[CheckpointStore, Path]:
    """A store whose step 1 is a link to an archive."""
    store = make_store(tmp_path / "run")
    step, archive = tmp_path / "run" / f"step-{1:012d}", tmp_path / "archive"
    step.rename(archive)
    step.symlink_to(archive)
    return CheckpointStore(store.root, keep=1), archive


def test_nothing_is_removed_or_written_through_a_link(linked: tuple[CheckpointStore, Path]) -> None:
    store, archive = linked
    (archive / "0123456789abcdef.pt").write_bytes(b"a leftover, or another store's")
    before = files(archive)
    for step in (4, 5):
        store.save(step, content(step))
    assert files(archive) == before
    assert store.steps() == [1, 5]
    assert store.load(1)["step"] == 1
    with pytest.raises(CheckpointError, match=r"(?s)step 1 was not deleted: .* is a symbolic link"):
        store.delete(1)
    with pytest.raises(CheckpointError, match=r"(?s)step 1 was not saved: .* is a symbolic link"):
        CheckpointStore(store.root).save(1, {})
    assert files(archive) == before


def test_a_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    store = CheckpointStore(tmp_path / "run", keep=1)
    for step in (1, 2):
        store.save(step, {})
    assert store.steps() == [2]


# ---------------------------------------------------------------------- time


@pytest.mark.parametrize("timeout", [0, -1, "5", math.nan, True])
def test_a_timeout_is_positive(tmp_path: Path, timeout: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"timeout must be a number of seconds greater than 0"):
        CheckpointStore(tmp_path, timeout=timeout)


def test_a_local_disk_has_no_limit_unless_it_is_given_one(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path)._steps.seconds == math.inf
    assert CheckpointStore(tmp_path, timeout=3)._steps.seconds == 3
    assert CheckpointStore("memory://time")._steps.seconds == 1800
    assert CheckpointStore("memory://time", timeout=math.inf)._steps.seconds == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("name", ["names", "read", "make_dir", "create", "stage", "size", "put"])
def test_a_disk_that_hangs_ends_a_save_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As a network file system whose server is gone; nothing is published later, when it is back."""
    store = make_store(tmp_path / "run")
    hung, back = CheckpointStore(store.root, keep=2, timeout=0.3), threading.Event()
    real = getattr(_storage.LocalStorage, name, None) or getattr(_storage.Storage, name)

    def hang(self: Any, *args: Any) -> Any:
        back.wait(20)
        return real(self, *args)

    monkeypatch.setattr(steps, "_processes", {})  # as a new process, which takes the token
    monkeypatch.setattr(_storage.LocalStorage, name, hang)
    began = time.monotonic()
    with pytest.raises(CheckpointTimeoutError, match=r"(?s)step 4 was not saved.*0\.3 s, the time limit"):
        hung.save(4, content(4))
    assert time.monotonic() - began < 15, "it was waited for"
    back.set()
    for thread in threading.enumerate():
        if thread.name == "resumable-checkpoint":
            thread.join()
    monkeypatch.undo()
    assert store.steps() == [1, 2, 3]


def test_the_log_says_what_takes_long_on_a_local_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FIRST", 0.05)
    waited = threading.Event()
    monkeypatch.setattr(_storage.LocalStorage, "size", lambda self, path: waited.wait(0.2) or Path(path).stat().st_size)
    with caplog.at_level(logging.WARNING, "resumable"):
        CheckpointStore(tmp_path).save(1, content(1))
    assert [record.message.partition(" after")[0] for record in caplog.records] == [
        f"still saving step 1 to {tmp_path}"
    ] * 2
    assert "no time limit" in caplog.text


# ---------------------------------------------------------------------- the writer's token


def in_a_process(root: Path | str, line: str) -> None:
    script = f"from resumable.checkpoint import CheckpointStore; store = CheckpointStore({str(root)!r}, keep=2); {line}"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=PROJECT)


@pytest.mark.slow
def test_older_writer_is_refused_for_good(tmp_path: Path) -> None:
    """The newest writer continues, and the older one is rejected for good."""
    store = make_store(tmp_path)
    in_a_process(tmp_path, "store.latest(); store.steps()")  # a reader takes nothing
    store.save(4, {})
    in_a_process(tmp_path, "store.save(10, {})")
    before = files(tmp_path)
    for old in (store, CheckpointStore(tmp_path, keep=1)):
        with pytest.raises(
            WriterFencedError, match=r"(?s)step 11 was not saved.*this process: +\d+ on.*the writer: +\d"
        ):
            old.save(11, {})
        with pytest.raises(WriterFencedError, match="step 4 was not deleted"):
            old.delete(4)
    assert files(tmp_path) == before
    assert store.latest_step() == 10
    in_a_process(tmp_path, "store.save(11, {})")
    assert store.steps() == [10, 11]


def test_replaced_writer_commits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that is replaced while it writes commits and prunes nothing.

    As one that hung for an hour, on a host of which nobody can tell whether it lives.
    """
    store = CheckpointStore(make_store(tmp_path).root, keep=1)
    other = json.dumps({"token": "1" * 16, "host": "b", "process": 7}).encode().ljust(LENGTH)
    real = _storage.LocalStorage.size

    def replaced(self: Any, path: str) -> int:
        (tmp_path / TOKEN).write_bytes(other)
        return real(self, path)

    monkeypatch.setattr(_storage.LocalStorage, "size", replaced)
    with pytest.raises(WriterFencedError, match=r"(?s)step 4 was not saved.*the writer: +7 on b"):
        store.save(4, content(4))
    assert store.steps() == [1, 2, 3]
    assert not list(tmp_path.glob("step-000000000004/*"))


def test_replaced_writer_after_its_commit(tmp_path: Path, monkeypatch: Any) -> None:
    """A writer that is replaced after its commit prunes nothing."""
    store = CheckpointStore(make_store(tmp_path).root, keep=1)
    other = json.dumps({"token": "1" * 16, "host": "b", "process": 7}).encode().ljust(LENGTH)
    real = _durable.publish

    def publish(temporary: Path, path: Path) -> None:
        real(temporary, path)
        (tmp_path / TOKEN).write_bytes(other)

    monkeypatch.setattr(_storage, "publish", publish)
    with pytest.raises(WriterFencedError, match="step 4 was saved to .*, but no older step was removed"):
        store.save(4, content(4))
    assert store.steps() == [1, 2, 3, 4]


def test_a_fork_is_another_writer(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    if (child := os.fork()) == 0:
        CheckpointStore(tmp_path).save(4, {})
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(WriterFencedError):
        store.save(5, {})


@pytest.mark.parametrize("raw", [b"", b"garbage", b"[1]", b"{}"])
def test_unreadable_token_takes_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    """A token that cannot be read is taken by a new process alone."""
    store = make_store(tmp_path)
    (tmp_path / TOKEN).write_bytes(raw)
    with pytest.raises(WriterFencedError, match="unknown on unknown"):
        store.save(4, {})
    monkeypatch.setattr(steps, "_processes", {})
    store.save(4, {})
    store.save(5, {})
    (tmp_path / TOKEN).unlink()  # a folder that somebody cleared has no other writer
    store.save(6, {})
