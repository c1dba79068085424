"""`loader.stats()` with worker processes: what they read, and what lay ready when the loop asked.

Where seconds are compared, the clock of the workers is one that goes on by one each time it is read: so a batch takes
one second, whatever the machine does. Where the queue is, the loop goes on when torch's queue has what it should have.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import resumable
from resumable import _stats
from resumable._fetch import workers
from resumable._fetch.stalls import answers_awaited
from resumable.backends.torch import in_worker as worker_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NAP = 0.02
BATCHES, WORKERS, AHEAD = 12, 2, 4
OWN_ORDER = [[index] for index in range(BATCHES)]


class Samples(Dataset[int]):
    def __init__(self, read: Callable[[int], None] = lambda _: None, length: int = BATCHES) -> None:
        self.read, self.length = read, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.read(index)
        return index


class Stream(IterableDataset[int]):
    def __init__(self, read: Callable[[int], None] = lambda _: None, *, stateful: bool = False) -> None:
        self.read, self.done = read, 0
        if stateful:
            self.state_dict = lambda: {"done": self.done}
            self.load_state_dict = lambda state: setattr(self, "done", state["done"])

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        while (number := first + self.done * step) < BATCHES:
            self.read(number)
            self.done += 1
            yield number
        self.done = 0


def in_turn(read: Any = lambda _: None, **options: Any) -> Any:
    return DataLoader(Samples(read), batch_size=1, num_workers=WORKERS, **options)


MAKERS: dict[str, Callable[..., Any]] = {
    "map": lambda read=lambda _: None, **given: resumable.wrap(in_turn(read), seed=0, **given),
    "own order": lambda read=lambda _: None, **given: resumable.wrap(
        DataLoader(Samples(read), batch_sampler=[[index] for index in range(BATCHES)], num_workers=WORKERS),
        seed=0,
        **given,
    ),
    "stream": lambda read=lambda _: None, **given: resumable.wrap(
        DataLoader(Stream(read), batch_size=1, num_workers=WORKERS), seed=0, **given
    ),
    "stateful stream": lambda read=lambda _: None, **given: resumable.wrap(
        DataLoader(Stream(read, stateful=True), batch_size=1, num_workers=WORKERS), seed=0, **given
    ),
    "logical streams": lambda read=lambda _: None, **given: resumable.wrap(
        DataLoader(Stream(read), batch_size=1, num_workers=WORKERS), seed=0, streams=3, **given
    ),
}
HEALED = [kind for kind in MAKERS if kind != "logical streams"]


@pytest.fixture
def counting_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the workers, which are forked, read a clock that goes on by one each time."""
    for module in (workers, worker_stream):
        monkeypatch.setattr(module, "perf_counter", partial(next, itertools.count(0.0)))


def nap(_: int) -> None:
    time.sleep(NAP)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_reading_is_measured_in_the_workers(kind: str) -> None:
    began = time.perf_counter()
    loader = MAKERS[kind](nap)
    assert len(list(loader)) == BATCHES
    took, stats = time.perf_counter() - began, loader.stats()
    assert stats.read_seconds is not None
    assert BATCHES * NAP <= stats.read_seconds <= WORKERS * took
    assert stats.asks == BATCHES - 1


@pytest.mark.slow
@pytest.mark.parametrize("ack", ["auto", "manual"])
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.usefixtures("counting_clock")
def test_reading_counts_for_delivered_batches(kind: str, ack: Any) -> None:
    """Reading counts for delivered batches, not for those that are read ahead."""
    loader = MAKERS[kind](ack=ack)
    states = []
    for step, _ in enumerate(loader):
        if ack == "manual":
            loader.ack()
        states.append(loader.state_dict())
        assert loader.stats().read_seconds == step + 1
        if step == 6:
            break
    for _ in loader:
        if ack == "manual":
            loader.ack()
    assert loader.stats().read_seconds == loader.stats().batches == BATCHES
    for step in (0, 4, 6):
        resumed = MAKERS[kind](ack=ack)
        resumed.load_state_dict(states[step])
        assert len(list(resumed)) == BATCHES - step - 1
        assert resumed.stats().read_seconds == BATCHES - step - 1  # nothing of the way to the place
        assert resumed.stats().asks <= resumed.stats().batches


@pytest.mark.usefixtures("counting_clock")
def test_a_look_is_read_once() -> None:
    loader = MAKERS["map"]()
    iterator = iter(loader)
    next(iterator)
    loader.peek()
    assert loader.stats().read_seconds == 1
    next(iterator)
    assert loader.stats().read_seconds == 2
    loader.peek()
    loader.seek(epoch=0, step=5)
    assert len(list(loader)) == BATCHES - 5
    assert loader.stats().read_seconds == loader.stats().batches == 2 + BATCHES - 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEALED)
@pytest.mark.usefixtures("counting_clock")
def test_what_workers_read_again_after_a_death_counts_once(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mark = tmp_path / "died"

    def read(index: int) -> None:
        if index == 5 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    loader = MAKERS[kind](read, on_worker_death="restart")
    assert sorted(int(batch) for batch in loader) == list(range(BATCHES))
    assert mark.exists()
    assert "restarted" in caplog.text
    stats = loader.stats()
    assert stats.read_seconds == stats.batches == BATCHES


def is_ready(count: int) -> None:
    """Wait until so many batches have been made and not taken."""
    (answers,) = list(workers._running)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        arrived = sum(len(task) > 1 for task in answers._task_info.values())
        if arrived + answers._worker_result_queue.qsize() == count:
            return
        time.sleep(0.001)
    raise TimeoutError(f"{count} batches were not made")


@pytest.fixture(autouse=True)
def _no_workers_of_other_tests() -> Iterator[None]:
    before = list(workers._running)
    workers._running.clear()
    yield
    workers._running.update(before)


def test_a_slow_loop_finds_a_full_queue() -> None:
    loader = MAKERS["map"]()
    for taken, _ in enumerate(loader, 1):
        is_ready(min(AHEAD, BATCHES - taken))
    stats = loader.stats()
    assert (stats.asks, stats.starved) == (BATCHES - 1, 0)
    assert stats.ready == sum(min(AHEAD, BATCHES - taken) for taken in range(1, BATCHES))
    assert stats.starved_fraction == 0
    assert stats.queue_depth == stats.ready / (BATCHES - 1)


def test_an_ask_counts_as_soon_as_it_is_known_what_was_ready() -> None:
    loader = MAKERS["map"]()
    for taken, _ in enumerate(loader, 1):
        asks = max(taken - AHEAD, 0)  # without the first one
        assert (loader.stats().asks, loader.stats().ready) == (asks, asks * AHEAD)
        is_ready(min(AHEAD, BATCHES - taken))
        if taken == BATCHES - AHEAD:
            break


def test_a_slow_source_is_asked_for_what_it_has_not_made(tmp_path: Path) -> None:
    def read(index: int) -> None:
        while not (tmp_path / f"asked {index}").exists():
            time.sleep(0.001)

    loader, main = MAKERS["map"](read), threading.get_ident()

    def let_go() -> None:
        for index in range(BATCHES):
            while main not in answers_awaited or loader.stats().batches != index:
                time.sleep(0.001)
            (tmp_path / f"asked {index}").touch()

    thread = threading.Thread(target=let_go)
    thread.start()
    assert len(list(loader)) == BATCHES
    thread.join()
    stats = loader.stats()
    assert (stats.asks, stats.ready, stats.starved) == (BATCHES - 1, 0, BATCHES - 1)
    assert (stats.queue_depth, stats.starved_fraction) == (0, 1)


def test_one_slow_batch_holds_up_those_that_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked at 1, 2, 3...; made in another order."""
    times = iter([1.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(_stats, "perf_counter", lambda: next(times))
    told, sums = _stats.Meter(), Sums()
    queue = _stats.Queue(told, 3)
    for made in (0.5, 2.5, 0.6, 3.5):
        queue.ask()
        queue.ask()  # again, as what came was none
        assert queue.came("nothing") == "nothing"
        assert queue.came(_stats.Made("batch", 0.25, made)) == "batch"
    told.collect(sums)
    assert sums.asks == 1  # the first one opened, and of the others one is known
    queue.over()
    told.collect(sums)
    # At 2 the third batch was ready, at 3 that one, and at 4 the last one.
    assert (sums.asks, sums.ready, sums.starved) == (3, 3, 1)


class Sums:
    read = 0.0
    asks = ready = starved = 0


def test_the_queue_of_each_epoch_is_its_own() -> None:
    loader = resumable.wrap(in_turn(persistent_workers=True), seed=0)
    for epoch in loader.epochs(2):
        for taken, _ in enumerate(epoch, 1):
            is_ready(min(AHEAD, BATCHES - taken))
    assert loader.stats(0).ready == loader.stats(1).ready > 0
    assert loader.stats(0).asks == loader.stats(1).asks == BATCHES - 1
    loader.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_no_state_has_anything_of_it(kind: str) -> None:
    plain, slow = MAKERS[kind](), MAKERS[kind](nap)
    for _ in zip(range(3), plain, slow, strict=False):
        assert plain.state_dict() == slow.state_dict()
    names = {field.name for field in fields(resumable.LoaderStats)} - {"batches", "samples"}
    assert not any(f"'{name}'" in repr(plain.state_dict()) for name in names)


def test_without_workers_it_is_what_the_process_waited() -> None:
    loader = resumable.wrap(DataLoader(Samples(nap), batch_size=2), seed=0)
    list(loader)
    stats = loader.stats()
    assert stats.read_seconds == stats.wait_seconds - stats.opening_seconds >= (BATCHES - 2) * NAP
    assert (stats.asks, stats.queue_depth, stats.starved_fraction) == (0, None, None)
    assert not {"asks", "ready", "starved", "queue_depth"} & set(stats.as_dict())
