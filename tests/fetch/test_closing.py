"""Whoever closes a generator may wait for its threads, and the garbage collector may not."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import resumable
from resumable._fetch.stream import close, may_wait

if TYPE_CHECKING:
    from collections.abc import Iterator


class Noting:
    """A backend that notes, at each end of an iteration, whether it might wait."""

    kind = "noting"

    def __init__(self) -> None:
        self.identity = {"source": "noting"}
        self.ends: list[bool] = []

    def open(self, epoch: int) -> Iterator[int]:
        try:
            yield from range(5)
        except GeneratorExit:
            self.ends.append(may_wait())
            raise


def test_end_by_hand_and_by_the_collector() -> None:
    """The end by hand is told from the end by the garbage collector."""
    source = Noting()
    loader = resumable.wrap(source)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    assert source.ends == [True]
    next(iter(loader))
    holder: dict[str, Any] = {"loader": loader}
    holder["itself"] = holder
    del loader, holder
    gc.collect()
    assert source.ends == [True, False]
    assert not may_wait()


def test_a_failing_close_leaves_nothing_behind() -> None:
    def stubborn() -> Any:
        try:
            yield 1
        finally:
            raise OSError("it does not close")

    generator = stubborn()
    next(generator)
    try:
        close(generator)
    except OSError:
        assert not may_wait()
    else:
        raise AssertionError("the error is lost")


def test_a_close_inside_of_a_close_leaves_the_outer_one_by_hand() -> None:
    def inner() -> Any:
        yield 1

    def outer(seen: list[bool]) -> Any:
        try:
            yield 1
        finally:
            generator = inner()
            next(generator)
            close(generator)
            seen.append(may_wait())

    seen = list[bool]()
    generator = outer(seen)
    next(generator)
    close(generator)
    assert seen == [True]


AT_EXIT = """
import ctypes, json, sys
import resumable
json.kept = iter(resumable.wrap(lambda: iter(range(9)), seed=0))  # json loses its names after ours
next(json.kept)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(dict(sys.modules)))  # as an extension that leaks: modules are not freed
"""


def test_an_open_stream_ends_in_silence_when_python_exits() -> None:
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, check=True)
    assert not done.stderr
