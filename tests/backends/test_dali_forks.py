"""A fork leaves DALI's pipelines to its parent, and the garbage collector as it was."""

from __future__ import annotations

import gc
import os
import threading
from typing import TYPE_CHECKING

import pytest

import resumable.backends.dali  # it makes forks safe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

assert resumable.backends.dali.__all__


class Told:
    """Garbage in a cycle, which tells where it is freed."""

    def __init__(self) -> None:
        self.itself = self
        self.process = os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self.process:
            os._exit(1)


def status_of(work: Callable[[], bool]) -> int:
    child = os.fork()
    if not child:
        os._exit(0 if work() else 2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture(params=[True, False])
def collecting(request: pytest.FixtureRequest) -> Iterator[bool]:
    (gc.enable if request.param else gc.disable)()
    yield request.param
    gc.enable()


@pytest.mark.slow
def test_garbage_of_the_parent_is_not_freed_in_a_fork(*, collecting: bool) -> None:
    Told()
    assert status_of(lambda: gc.collect() >= 0) == 0
    assert gc.isenabled() is collecting
    gc.collect()


def test_the_collector_stays_as_it_was(*, collecting: bool) -> None:
    assert status_of(lambda: gc.isenabled() is collecting) == 0
    assert gc.isenabled() is collecting


@pytest.mark.slow
def test_forks_side_by_side_leave_the_collector_on() -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(status_of(gc.isenabled))) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [0] * 40
    assert gc.isenabled()
