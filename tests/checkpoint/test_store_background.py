"""CheckpointStore: saves in the background, which hold what was given, publish no half, and raise at the next call."""

from __future__ import annotations

import errno
import gc
import io
import logging
import os
import shutil
import signal
import threading
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from stores import assert_tidy, content, found, make_store

from resumable import failpoints
from resumable._storage import LocalStorage
from resumable.checkpoint import CheckpointStore
from resumable.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Lets no marker be published until it is set."""
    event, stage = threading.Event(), LocalStorage.stage

    def held(self: Any, path: str, temporary: str, data: bytes) -> Callable[[], None]:
        assert event.wait(20)
        return stage(self, path, temporary, data)

    monkeypatch.setattr(LocalStorage, "stage", held)
    yield event
    event.set()


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every data file fail, as on a disk that is full."""

    def fail(self: Any, path: str) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(LocalStorage, "size", fail)


def test_later_changes_in_place_are_not_in_it(tmp_path: Path, gate: threading.Event) -> None:
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    given: dict[str, Any] = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "list": [1],
        "view": torch.zeros(4)[1:3],
    }
    store = CheckpointStore(tmp_path)
    store.save(1, given, background=True)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer.step()
    given["list"].append(2)
    given["view"] += 1
    assert not CheckpointStore(tmp_path).steps(), "it was published before it was written"
    gate.set()
    saved = store.load(1)
    assert all(torch.equal(saved["model"][name], value) for name, value in kept.items())
    assert saved["optimizer"]["state"][0]["step"] == 1
    assert saved["list"] == [1]
    assert saved["view"].tolist() == [0, 0]


@pytest.mark.slow
def test_returns_before_it_is_written(tmp_path: Path, gate: threading.Event) -> None:
    """It returns before it is written, and every call waits for it."""
    calls: list[Callable[[CheckpointStore], Any]] = [
        lambda store: store.latest(),
        lambda store: store.latest_step(),
        lambda store: store.steps(),
        lambda store: store.load(1),
        lambda store: store.delete(1),
        lambda store: store.save(2, {"step": 2}),
        lambda store: store.save(2, {"step": 2}, background=True),
        lambda store: store.close(),
        lambda store: store.__exit__(None, None, None),
    ]
    for number, call in enumerate(calls):
        gate.clear()
        store = CheckpointStore(tmp_path / str(number))
        store.save(1, {"step": 1}, background=True)
        waits = threading.Thread(target=call, args=(store,))
        waits.start()
        waits.join(0.05)
        assert waits.is_alive(), number
        gate.set()
        waits.join(20)
        store.close()
        assert store.steps() == ([] if number == 4 else [1, 2] if number in (5, 6) else [1])


def test_error_is_logged_and_raised_once(tmp_path: Path, caplog: pytest.LogCaptureFixture, full: None) -> None:
    """An error is logged at once and raised once by the next call."""
    store = CheckpointStore(tmp_path)
    for call in (store.steps, store.latest, lambda: store.save(5, {}), store.close):
        with caplog.at_level(logging.ERROR, "resumable"):
            store.save(4, {"step": 4}, background=True)
            assert store._background._thread is not None
            store._background._thread.join()
        assert "saving step 4" in caplog.text
        with pytest.raises(CheckpointError, match="step 4 was not saved"):
            call()
        assert store.steps() == []


def test_a_failed_save_leaves_no_view_of_its_buffer(tmp_path: Path, full: None) -> None:
    """Python 3.12.1 crashes if the garbage collector frees a `BytesIO` before a view of it."""
    store = CheckpointStore(tmp_path)
    store.save(1, content(1), background=True)
    with pytest.raises(CheckpointError) as raised:
        store.close()
    held, seen = list[Any]([raised.value]), dict[int, Any]()
    while held:
        one = held.pop()
        if id(one) not in seen and not isinstance(one, (type, ModuleType, FunctionType)):
            seen[id(one)] = one
            held += gc.get_referents(one)
    assert len(seen) > 100
    buffer = type(io.BytesIO().getbuffer().obj)
    assert not [one for one in seen.values() if isinstance(one, (memoryview, buffer))]


def test_what_cannot_be_loaded_is_refused_before_it_returns(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    with pytest.raises(CheckpointError, match="'bad'"):
        store.save(1, {"bad": object()}, background=True)
    assert store.steps() == []


def test_with_block_raises_its_error(tmp_path: Path, full: None) -> None:
    """A `with` block raises its error, unless another is on its way."""

    def block(error: Exception | None) -> None:
        with CheckpointStore(tmp_path) as store:
            store.save(4, {"step": 4}, background=True)
            if error is not None:
                raise error

    with pytest.raises(CheckpointError, match="step 4"):
        block(None)
    with pytest.raises(KeyError, match="mine"):
        block(KeyError("mine"))


def test_a_fork_has_nothing_to_wait_for(tmp_path: Path, gate: threading.Event) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, {"step": 1}, background=True)
    if (child := os.fork()) == 0:
        os._exit(len(store.steps()) + 5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    gate.set()
    assert store.steps() == [1]


def killed(root: Path, count: int) -> bool:
    """Save in the background in a child that kills itself at its n-th failpoint; tell if it came to that."""

    def watch(name: str, about: tuple[Any, ...]) -> None:
        nonlocal count
        count -= name.startswith("store.") and name != "store.save"
        if count == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if (child := os.fork()) == 0:
        try:
            store = CheckpointStore(root, keep=2)
            failpoints.watch(watch)
            store.save(4, content(4, 1), background=True)
            store.close()
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.slow
def test_sigkill_at_every_failpoint_of_a_save_in_the_background(tmp_path: Path) -> None:
    model = tmp_path / "model"
    make_store(model)
    outcomes: list[Any] = []
    for count in range(1, 20):
        root = tmp_path / f"run{count}"
        shutil.copytree(model, root)
        harmed = killed(root, count)
        outcomes.append(found(root))
        store = CheckpointStore(root, keep=2)
        store.save(9, content(9))
        assert_tidy(root, store)
        if not harmed:
            break
    assert outcomes[0] == (3, 0)
    assert outcomes[-1] == (4, 1)
    assert len(outcomes) > 6
    assert outcomes == sorted(outcomes), "a committed checkpoint was lost again at a later point"
