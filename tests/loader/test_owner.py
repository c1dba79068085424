"""Threads and processes at one Loader: one reader at a time, and only where the stream was opened."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import resumable
from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable


def in_a_thread(call: Callable[[], Any]) -> list[Any]:
    """Return what a call returns or raises in a thread."""
    got: list[Any] = []

    def run() -> None:
        try:
            got.append(call())
        except Exception as error:  # noqa: BLE001  # it is looked at by the test
            got.append(error)

    thread = threading.Thread(target=run, name="the other")
    thread.start()
    thread.join(30)
    return got


@pytest.mark.parametrize("how", ["next", "peek"])
def test_two_threads_at_once_are_refused_and_nothing_is_lost(how: str) -> None:
    reading, go = threading.Event(), threading.Event()

    def read(sample: int) -> int:
        if sample == 2:
            reading.set()
            assert go.wait(30)
        return sample

    loader = resumable.wrap(range(5), transform=read)
    iterator = iter(loader)
    assert [next(iterator), next(iterator)] == [0, 1]
    refused: list[Any] = []

    def intrude() -> None:
        assert reading.wait(30)
        refused.extend(in_a_thread(loader.peek if how == "peek" else lambda: next(iterator)))
        refused.append(loader.acknowledged.step)  # neither this nor a state is refused
        go.set()

    intruder = threading.Thread(target=intrude)
    intruder.start()
    assert next(iterator) == 2
    intruder.join(30)
    assert isinstance(refused[0], UnsupportedError)
    assert "reading:      thread 'MainThread'\n  requested by: thread 'the other'" in str(refused[0])
    assert refused[1] == 2
    assert list(iterator) == [3, 4]


def test_another_thread_between_two_batches_is_welcome() -> None:
    loader = resumable.wrap(range(5), ack="manual")
    iterator = iter(loader)
    assert in_a_thread(lambda: next(iterator)) == [0]
    assert next(iterator) == 1
    in_a_thread(loader.ack)
    assert in_a_thread(loader.state_dict)[0]["cursor"]["step"] == 1
    assert in_a_thread(lambda: list(iterator)) == [[2, 3, 4]]


def test_an_interrupted_reader_is_not_locked_out() -> None:
    def read(sample: int) -> int:
        if sample == 1 and not interrupted:
            interrupted.append(sample)
            raise KeyboardInterrupt
        return sample

    interrupted: list[int] = []
    loader = resumable.wrap(range(3), transform=read)
    with pytest.raises(KeyboardInterrupt):
        list(loader)
    assert in_a_thread(lambda: list(loader)) == [[1, 2]]


def in_a_fork(call: Callable[[], Any]) -> str:
    """Return the text of what a call returns or raises in a forked process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(call())
        except BaseException as error:  # noqa: BLE001  # it is looked at by the test
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.slow
def test_a_fork_may_not_read_on() -> None:
    loader = resumable.wrap(lambda: iter(range(5)))
    assert in_a_fork(lambda: list(loader)) == "[0, 1, 2, 3, 4]", "nothing was open"
    iterator = iter(loader)
    assert next(iterator) == 0
    told = in_a_fork(lambda: next(iterator))
    assert told.startswith("UnsupportedError: a batch was requested in a different process")
    assert f"opened in process:    {os.getpid()}\n" in told
    state = loader.state_dict()
    assert "'step': 1" in in_a_fork(lambda: loader.state_dict()["cursor"])

    def begin_again() -> list[int]:
        loader.load_state_dict(state)
        return list(loader)

    assert in_a_fork(begin_again) == "[1, 2, 3, 4]"
    assert list(iterator) == [1, 2, 3, 4]


def test_it_costs_next_to_nothing() -> None:
    from resumable._fetch import Owner  # noqa: PLC0415  # what is measured

    owner, count = Owner(), 20_000
    owner.opened()
    best = min(timeit(owner, count) for _ in range(5))
    assert best / count < 5e-6


def timeit(owner: Any, count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        owner.enter()
        owner.leave()
    return time.perf_counter() - begin
