"""A wait that takes too long says what it is for. What hangs goes on once that is said, so that no time counts."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

import resumable
from resumable._fetch import stalls
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 120.0  # seconds for what comes at once on an idle machine
NEVER = 1000.0

Threads: TypeAlias = "Callable[[], list[threading.Thread]]"


def wait_until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit, "it did not come"
        time.sleep(0.01)


@pytest.fixture
def threads(own_threads: Threads) -> Threads:
    return lambda: [thread for thread in own_threads() if thread.name == "resumable stalls"]


class Messages(logging.Handler):
    """What was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    def hang(self, count: int) -> None:
        """Hang until there are so many."""
        wait_until(lambda: len(self.texts) >= count)


@pytest.fixture
def messages(threads: Threads) -> Iterator[Messages]:
    found, logger = Messages(), logging.getLogger("resumable")
    logger.addHandler(found)
    yield found
    logger.removeHandler(found)
    wait_until(lambda: not threads())


def test_the_message_names_batch_samples_rank_and_code(messages: Messages) -> None:
    def hang_on_a_lock(sample: int) -> int:
        if sample == 7:
            messages.hang(1)
        return sample

    world = resumable.World(1, 2)
    loader = resumable.wrap(range(12), transform=hang_on_a_lock, batch_size=2, stall_after=0.2, world=world)
    assert list(loader) == [[2, 3], [6, 7], [10, 11]]
    assert re.match(r"next\(\) has waited [\d.]+ s for a batch \(stall_after=0.2\).\n", messages.texts[0])
    assert (
        "epoch 0, step 1\n  samples:     [6, 7]\n  rank:        1 of 2\n  waiting for: this process"
        in messages.texts[0]
    )
    assert "in hang_on_a_lock\n    messages.hang(1)" in messages.texts[0]


@pytest.mark.parametrize("where", ["open", "middle", "end", "peek"])
def test_stream_without_indices_is_watched(messages: Messages, where: str) -> None:
    """A stream without indices is watched from its opening to its end."""

    def stream() -> Iterator[int]:
        for element in range(3):
            if element == {"open": 0, "middle": 1, "peek": 0}.get(where):
                messages.hang(1)
            yield element
        if where == "end":
            messages.hang(1)

    loader = resumable.wrap(stream, stall_after=0.2)
    if where == "peek":
        loader.peek()
        assert messages.texts
    assert list(loader) == [0, 1, 2]
    step = {"open": 0, "middle": 1, "end": 3, "peek": 0}[where]
    assert f"epoch 0, step {step}\n  rank:        0 of 1\n" in messages.texts[0]
    assert "in stream\n" in messages.texts[0]


@pytest.mark.slow
def test_said_again_after_twice_the_time(messages: Messages) -> None:
    """It is said again after twice the time and for another batch."""

    def read(sample: int) -> int:
        if sample == 1:
            messages.hang(4)
        if sample == 2:
            messages.hang(5)
        return sample

    assert list(resumable.wrap(range(3), transform=read, stall_after=0.2)) == [0, 1, 2]
    waited = [float(text.split()[3]) for text in messages.texts]
    assert all(seconds >= 0.199 * 2**number for number, seconds in enumerate(waited[:4]))  # it is rounded
    steps = [int(text.partition("step ")[2].partition("\n")[0]) for text in messages.texts]
    assert steps == sorted(steps)
    assert {1, 2} <= set(steps)
    assert waited[steps.index(2)] < waited[steps.index(2) - 1] * 2  # it begins with the first limit again


@pytest.mark.slow
def test_a_slow_source_below_the_limit_says_nothing(messages: Messages) -> None:
    loader = resumable.wrap(range(4), transform=lambda _: time.sleep(0.3), stall_after=PATIENCE)
    assert len(list(loader)) == 4
    assert not messages.texts


@pytest.mark.slow
def test_a_slow_loop_says_nothing(messages: Messages) -> None:
    for _ in resumable.wrap(range(2), stall_after=1):
        time.sleep(2.5)
    assert not messages.texts


def test_hanging_sampler_is_named(messages: Messages) -> None:
    """A sampler that hangs is named if it cannot say which samples come."""

    class Slow(resumable.samplers.Sequential):
        def indices(self, epoch: int, start: int, stop: int) -> Any:
            if threading.current_thread() is not threading.main_thread():
                raise RuntimeError("not here")
            messages.hang(1)
            return super().indices(epoch, start, stop)

    loader = resumable.wrap(range(6), sampler=Slow(6), batch_size=3, stall_after=0.2)
    assert list(loader) == [[0, 1, 2], [3, 4, 5]]
    assert "step 0\n  rank: " in messages.texts[0]
    assert "in indices\n    messages.hang(1)" in messages.texts[0]


# ------------------------------------------------------------------ the thread


@pytest.mark.slow
@pytest.mark.parametrize("how", ["end", "load", "break", "evaluation", "end_epoch"])
def test_the_thread_ends_with_the_stream(how: str, threads: Threads) -> None:
    loader = resumable.wrap(range(6), stall_after=NEVER, evaluation=how == "evaluation")
    assert not threads()
    iterator = iter(loader)
    next(iterator)
    held = loader.progress._stream if how != "break" else None  # as a traceback would hold it
    assert len(threads()) == 1
    if how == "end":
        list(iterator)
    elif how == "load":
        loader.load_state_dict(loader.state_dict())
    elif how == "end_epoch":
        loader.end_epoch()
    elif how == "break":
        del loader
    if how == "evaluation":
        held = None
    del iterator
    gc.collect()
    wait_until(lambda: not threads())
    assert (held is None) == (how in {"break", "evaluation"})


@pytest.mark.slow
def test_one_thread_only_with_the_option(threads: Threads) -> None:
    """One thread is enough for all, and none starts without the option."""
    loaders = [resumable.wrap(range(6), stall_after=limit) for limit in (NEVER, NEVER, None)]
    iterators = [iter(loader) for loader in reversed(loaders)]
    counts = []
    for iterator in iterators:
        next(iterator)
        counts.append(len(threads()))
    assert counts == [0, 1, 1]
    del loaders, iterators, iterator
    gc.collect()
    wait_until(lambda: not threads())


def test_a_forked_process_has_no_thread_and_can_begin_its_own(threads: Threads) -> None:
    loader = resumable.wrap(range(6), stall_after=NEVER)
    next(iter(loader))
    child = os.fork()
    if not child:
        code = 1
        signal.alarm(int(PATIENCE))  # rather than hang
        try:
            found = Messages()
            logging.getLogger("resumable").addHandler(found)
            assert not threads()
            own = resumable.wrap(range(3), transform=lambda _: found.hang(1), stall_after=0.1)
            assert list(own) == [None, None, None]
            assert found.texts
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert len(threads()) == 1
    del loader
    wait_until(lambda: not threads())


# ------------------------------------------------------------------ workers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "start"),
    [("indexed", "fork"), ("streamed", "fork"), pytest.param("indexed", "spawn", marks=pytest.mark.long)],
)
def test_the_worker_is_named_and_writes_its_stack(kind: str, start: str, tmp_path: Path) -> None:
    script, errors = Path(__file__).with_name("stalled_run.py"), tmp_path / "errors"
    with errors.open("wb") as file:
        child = subprocess.Popen([sys.executable, script, kind, start], cwd=tmp_path, stderr=file)
    try:
        wait_until(lambda: "in hang_on_a_lock" in errors.read_text() or child.poll() is not None)
    finally:
        (tmp_path / "go").touch()
    assert child.wait(PATIENCE) == 0, errors.read_text()
    text = errors.read_text()
    assert re.search(r"waiting for: worker 1, process \d+, which writes its stack to stderr", text)
    if kind == "indexed":
        assert "epoch 0, step 3\n  samples:     [6, 7]\n" in text


def test_process_that_the_signal_would_end() -> None:
    """A process that would be ended by the signal does not get it."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert not stalls._has(child.pid, "SigCgt")
        assert not stalls._has(2**22 + 1, "SigCgt")  # there is none
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "60", True, [60]])
def test_what_is_no_time_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="stall_after must be a number of seconds above 0, but it is"):
        resumable.wrap(range(6), stall_after=value)
