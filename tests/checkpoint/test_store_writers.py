"""CheckpointStore: leftovers of crashed saves, other threads, and readers while one writes."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from stores import files, leave, make_store

from resumable.checkpoint import CheckpointStore, steps
from resumable.errors import CheckpointError


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return make_store(tmp_path / "run")


def test_leftovers_below_the_new_step(store: CheckpointStore) -> None:
    """Leftovers below the new step are removed, and others are not."""
    gone = [leave(Path(store.root), 2), leave(Path(store.root), 2, "00112233445566ff.tmp"), leave(Path(store.root), 4)]
    stay = [
        leave(Path(store.root), 9),
        leave(Path(store.root), 5),
        leave(Path(store.root), 2, "notes.pt"),
        leave(Path(store.root), 4, "model.tmp"),
    ]
    store = CheckpointStore(store.root)
    store.save(5, {"step": 5})
    assert [path for path in gone if path.exists()] == []
    assert [path for path in stay if not path.exists()] == []
    assert store.steps() == [1, 2, 3, 5]
    assert store.load(2)["step"] == 2


class Slow(OrderedDict[str, int]):
    """Content whose pickling waits until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.go_on = threading.Event(), threading.Event()

    def __reduce__(self) -> Any:
        self.started.set()
        assert self.go_on.wait(10)
        return OrderedDict, ()


def test_a_slow_save_in_another_thread_is_left_alone(tmp_path: Path) -> None:
    slow, store = Slow(), CheckpointStore(tmp_path, keep=2)
    thread = threading.Thread(target=CheckpointStore(tmp_path, verify=False).save, args=(1, slow))
    thread.start()
    assert slow.started.wait(10)
    store.save(2, {"step": 2})
    assert store.steps() == [2]
    slow.go_on.set()
    thread.join()
    assert store.steps() == [1, 2]
    assert store.load(1) == {}
    assert not steps._writing


@pytest.mark.filterwarnings("ignore::resumable.errors.StepOrderWarning")  # each thread saves its step again
@pytest.mark.parametrize("steps", [[5] * 8, list(range(8))], ids=["one step", "a step each"])
def test_threads_may_save_at_once(tmp_path: Path, steps: list[int]) -> None:
    barrier = threading.Barrier(len(steps))
    errors: list[CheckpointError] = []

    def save(step: int) -> None:
        barrier.wait()
        try:
            for _ in range(5):
                CheckpointStore(tmp_path).save(step, {"step": step, "thread": threading.get_ident()})
        except CheckpointError as error:
            errors.append(error)

    threads = [threading.Thread(target=save, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store = CheckpointStore(tmp_path)
    assert errors == []
    assert [store.load(step)["step"] for step in store.steps()] == sorted(set(steps))
    store.save(99, {})
    assert len(files(tmp_path)) == 2 * len(store.steps())


def test_reader_while_a_writer_prunes(tmp_path: Path) -> None:
    """A reader sees whole checkpoints in order while a writer prunes."""
    enough, store = threading.Event(), CheckpointStore(tmp_path, keep=1)
    store.save(0, {"step": 0})

    def write() -> None:
        for step in itertools.count(1):
            for _ in range(2):
                store.save(step, {"step": step})
            if enough.is_set():
                return

    thread = threading.Thread(target=write)
    thread.start()
    seen: list[int] = []
    try:
        while len(set(seen)) < 10:
            latest = CheckpointStore(tmp_path).latest()
            assert latest is not None
            seen.append(latest["step"])
    finally:
        enough.set()
        thread.join()
    assert seen == sorted(seen)
