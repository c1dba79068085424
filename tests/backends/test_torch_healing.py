"""Workers that heal: whatever happens to them, the stream and its states are those of an unharmed run."""

from __future__ import annotations

import gc
import logging
import os
import queue
import random
import re
import signal
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch_datasets as data
from healing_data import (
    HANGS,
    Big,
    EndsAtStart,
    EndsWhenUnpickled,
    Failing,
    forget_others,
    state_of,
    tries,
    workers,
)
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils import signal_handling

import resumable
from resumable.errors import ConfigurationError, UnsupportedError, WorkerError
from resumable.testing import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.process import BaseProcess

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_death_of_before")]


@pytest.fixture(autouse=True)
def _only_workers_of_this(no_death_of_before: None) -> None:
    forget_others()


@pytest.fixture(autouse=True, scope="module")
def _told_of_deaths() -> None:
    """Let torch set its handler again, which a Trainer before these tests may have taken away with all signals."""
    signal_handling._SIGCHLD_handler_set = callable(signal.getsignal(signal.SIGCHLD))


@pytest.fixture(autouse=True, scope="module")
def _mortal() -> Iterator[None]:
    """Let workers die of SIGHUP where the tests were started with `nohup`, too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


Steps = list[tuple[int, str, dict[str, Any] | None]]
EPOCHS = 3
EVERY = 5
TIMEOUT = 3  # seconds, as a loaded machine lets a healthy worker wait
PATIENCE = 60

SOURCES: dict[str, Callable[..., DataLoader[Any]]] = {
    "indexed": lambda **options: DataLoader(data.Augmented(), batch_size=3, shuffle=True, **options),
    "big": lambda **options: DataLoader(Big(12), batch_size=2, shuffle=True, collate_fn=list, **options),
    "own-order": lambda **options: DataLoader(data.Augmented(20), batch_size=3, sampler=data.OwnOrder(), **options),
    "stateful-order": lambda **options: DataLoader(
        data.Augmented(20), batch_size=3, sampler=data.StatefulOrder(), **options
    ),
    "own-batches": lambda **options: DataLoader(data.Augmented(21), batch_sampler=data.OwnBatches(), **options),
    "stream": lambda **options: DataLoader(data.Stream(), batch_size=3, **options),
    "stateful-stream": lambda **options: DataLoader(data.StatefulStream(), batch_size=3, **options),
    "epoch-in-state": lambda **options: DataLoader(data.EpochInState(), batch_size=3, **options),
}


def wrap(kind: str = "indexed", *, workers: int = 2, **options: Any) -> resumable.Loader[Any]:
    own = {name: options.pop(name) for name in ("evaluation", "on_worker_death") if name in options}
    return resumable.wrap(SOURCES[kind](num_workers=workers, **options), **{"on_worker_death": "restart", **own})


def steps_of(loader: resumable.Loader[Any], harm: Callable[[int], object] = id, epochs: int = EPOCHS) -> Steps:
    """Go to the end, do harm after each step, and return epoch, batch and state of each."""
    steps: Steps = []
    for epoch in loader.epochs(epochs):
        for batch in epoch:
            steps.append((epoch.number, digest(batch), loader.state_dict()))
            harm(len(steps))
    loader.close()
    assert not workers()
    return steps


@pytest.fixture(scope="module")
def unharmed() -> Callable[..., Steps]:
    """Return what a run without any harm gives; each is done once."""
    known: dict[Any, Steps] = {}

    def run(kind: str, **options: Any) -> Steps:
        key = kind, *sorted(options.items())
        if key not in known:
            known[key] = steps_of(wrap(kind, on_worker_death="error", **options))
        return known[key]

    return run


def strike(number: int, number_of_signal: int = signal.SIGHUP) -> None:
    """Send a signal to a worker, and wait until it is dead or stopped."""
    alive = workers()
    if not alive:
        return
    pid = alive[number % len(alive)]
    os.kill(pid, number_of_signal)
    wait_until(lambda: state_of(pid) in {"Z", "X", "T", "t", ""})


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


def restarts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "restarted" in record.getMessage()]


def also(*values: str) -> list[Any]:
    """Return parameters for `make test-long`."""
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


@contextmanager
def open_files() -> Iterator[None]:
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield
    wait_until(lambda: gc.collect() >= 0 and len(list(Path("/proc/self/fd").iterdir())) <= before)


# ------------------------------------------------------------------ killed from outside


QUICK = [("indexed", False), ("indexed", True), ("big", False), ("own-order", True), ("stateful-stream", True)]
GRID = [
    pytest.param(
        kind, persistent, first, marks=[] if (kind, persistent) in QUICK and first == EVERY else pytest.mark.long
    )
    for kind in SOURCES
    for persistent in (False, True)
    for first in range(1, EVERY + 1)
]


@pytest.mark.parametrize(("kind", "persistent", "first"), GRID)
def test_a_worker_killed_at_each_step(kind: str, persistent: bool, first: int, unharmed: Callable[..., Steps]) -> None:
    """Each of some runs has a worker killed at every fifth step, from another one on."""
    expected = unharmed(kind, persistent_workers=persistent)
    with open_files():
        loader = wrap(kind, persistent_workers=persistent)
        assert steps_of(loader, lambda step: strike(step) if step % EVERY == first % EVERY else None) == expected
        del loader


def test_one_run_whose_workers_are_all_killed_after_every_step(
    unharmed: Callable[..., Steps], caplog: pytest.LogCaptureFixture
) -> None:
    def harm(_: int) -> None:
        for _ in workers():
            strike(0)

    steps = steps_of(wrap(), harm)
    assert steps == unharmed("indexed")
    assert len(steps) >= len(restarts(caplog)) >= EPOCHS  # what workers had sent before they died is delivered
    told = "\n".join(restarts(caplog))
    assert re.search(r"worker [01], process \d+, was killed by SIGHUP\n", told)
    assert re.search(r"\n  requested: epoch [012], step [1-6], samples \[", told)


def test_a_state_of_a_harmed_run_goes_on_in_an_unharmed_one(unharmed: Callable[..., Steps]) -> None:
    expected = unharmed("stateful-stream", persistent_workers=True)
    steps = steps_of(
        wrap("stateful-stream", persistent_workers=True), lambda step: strike(step) if step % 3 == 1 else None
    )
    for done in (1, 5, len(steps) // 3, len(steps) // 2, len(steps) - 1):
        resumed = wrap("stateful-stream", persistent_workers=True)
        resumed.load_state_dict(steps[done - 1][2] or {})
        assert steps_of(resumed) == expected[done:]


@pytest.mark.parametrize("context", ["fork", *also("spawn", "forkserver")])
def test_workers_in_every_context(
    context: str, unharmed: Callable[..., Steps], own_children: Callable[[], list[BaseProcess]]
) -> None:
    loader = wrap(persistent_workers=True, multiprocessing_context=context)
    struck = []

    def harm(step: int) -> None:
        if step in {3, 8}:
            struck.append(step)
            os.kill(own_children()[0].pid or 0, signal.SIGKILL)

    assert steps_of(loader, harm, 2) == unharmed("indexed", persistent_workers=True)[:16]
    assert struck == [3, 8]


def test_half_a_message_is_never_waited_for(unharmed: Callable[..., Steps]) -> None:
    """Batches that do not fit into the pipe: a worker that is killed behind the loop is in the middle of one."""
    loader = wrap("big")

    def harm(step: int) -> None:
        if step % 2:
            pids = workers()
            wait_until(lambda: any(state_of(pid) == "S" for pid in pids))
            strike(step, signal.SIGHUP)

    assert steps_of(loader, harm) == unharmed("big")


def test_the_training_step_is_not_interrupted(unharmed: Callable[..., Steps]) -> None:
    """torch's handler would raise in it, as the control shows."""
    reached: list[int] = []

    def harm(step: int) -> None:
        if step == 2:
            strike(0)
            until = time.monotonic() + (0.5 if heals else PATIENCE)
            while time.monotonic() < until:
                time.sleep(0.001)
            reached.append(step)

    heals = True
    assert steps_of(wrap(persistent_workers=True), harm) == unharmed("indexed", persistent_workers=True)
    assert reached == [2]
    heals = False
    with pytest.raises(RuntimeError, match="DataLoader worker") as caught:
        steps_of(wrap(persistent_workers=True, on_worker_death="error"), harm)
    assert not isinstance(caught.value, WorkerError)
    assert reached == [2]


@pytest.mark.parametrize("kind", ["big", pytest.param("stateful-stream", marks=pytest.mark.long)])
def test_a_thread_that_pins_is_not_kept_waiting(
    kind: str, unharmed: Callable[..., Steps], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU, torch starts the thread only if it is made to believe in one; what it does is then left out."""
    pinned: list[int] = []

    def loop(source: Any, target: Any, device_id: int, done: Any, device: Any) -> None:  # torch's
        while not done.is_set():
            with suppress(queue.Empty):
                item = source.get(timeout=5)
                pinned.append(item[0])
                target.put(item)

    expected = unharmed(kind)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda *_, **__: True)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: torch.device("cpu"))
    monkeypatch.setattr("torch.utils.data._utils.pin_memory._pin_memory_loop", loop)
    loader = wrap(kind, pin_memory=True)
    assert steps_of(loader, lambda step: strike(step) if step % EVERY == 0 else None) == expected
    assert len(pinned) >= len(expected)


def test_an_evaluation(caplog: pytest.LogCaptureFixture) -> None:
    loader = wrap(evaluation=True)
    expected = [digest(batch) for batch in wrap(evaluation=True)]
    for _ in range(2):
        got = []
        for batch in loader:
            got.append(digest(batch))
            if len(got) == 2:
                strike(0)
                strike(0)
        assert got == expected
    assert restarts(caplog)


def test_a_pass_that_is_left_leaves_no_process() -> None:
    for number in (signal.SIGKILL, signal.SIGSTOP):
        loader = wrap(persistent_workers=True)
        for _ in loader:
            break
        strike(0, number)
        loader.close()
        assert not workers()


# ------------------------------------------------------------------ by the dataset


@pytest.mark.parametrize("how", ["kill", "exit", "stop", *also("segfault", "_exit", "sleep")])
def test_a_sample_that_ends_its_worker_once(
    how: str, tmp_path: Path, unharmed: Callable[..., Steps], caplog: pytest.LogCaptureFixture
) -> None:
    source = DataLoader(
        Failing(tmp_path / "tries", how, 11),
        batch_size=3,
        shuffle=True,
        num_workers=2,
        timeout=TIMEOUT if how in HANGS else 0,
    )
    steps = steps_of(resumable.wrap(source, on_worker_death="restart", identity="Augmented"))
    assert [step[:2] for step in steps] == [step[:2] for step in unharmed("indexed")]
    assert tries(tmp_path / "tries") == len(restarts(caplog)) == 1


@pytest.mark.parametrize("how", ["kill", "sleep", *also("exit", "stop")])
def test_a_sample_that_always_ends_its_worker_is_told(
    how: str, tmp_path: Path, unharmed: Callable[..., Steps], caplog: pytest.LogCaptureFixture, capfd: Any
) -> None:
    """Every batch before it is delivered, though it is read far ahead; the state goes on where the sample is mended."""
    hangs = how in HANGS

    def make(times: int) -> resumable.Loader[Any]:
        failing = Failing(tmp_path / "tries", how, 11, times)
        timeout = TIMEOUT if hangs else 0
        source = DataLoader(failing, batch_size=3, shuffle=True, num_workers=2, prefetch_factor=4, timeout=timeout)
        return resumable.wrap(source, on_worker_death="restart")

    got: list[str] = []
    loader = make(100)
    with pytest.raises(WorkerError) as caught:
        got.extend(digest(batch) for batch in loader)
    expected = [batch for _, batch, _ in unharmed("indexed")]
    indices = [loader.sample_indices(epoch=0, step=step) for step in range(8)]
    poisoned = next(step for step, samples in enumerate(indices) if 11 in samples)
    assert got == expected[:poisoned]
    assert loader.cursor.step == poisoned
    assert f"epoch 0, step {poisoned}, samples {indices[poisoned]}" in str(caught.value)
    told = "not even when the batch was requested again" if hangs else "even when one batch was requested at a time"
    assert told in str(caught.value)
    assert tries(tmp_path / "tries") in ({2, 3} if hangs else {4})
    assert len(restarts(caplog)) == tries(tmp_path / "tries") - 1
    assert ("in wait_for_ever" in capfd.readouterr().err) is (how == "sleep")
    assert not workers()
    resumed = make(0)
    resumed.load_state_dict(loader.state_dict())
    assert [step[1] for step in steps_of(resumed)] == expected[poisoned:]


def test_a_stream_whose_worker_always_dies(caplog: pytest.LogCaptureFixture) -> None:
    class Deadly(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield from range(4)
            os._exit(1)

    source = DataLoader(Deadly(), batch_size=2, num_workers=2)
    got: list[Any] = []
    loader: resumable.Loader[Any] = resumable.wrap(source, on_worker_death="restart")
    with pytest.raises(WorkerError, match="died repeatedly(?s:.)*epoch 0, batch 2 of this worker"):
        got.extend(batch.tolist() for batch in loader)
    assert got == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert loader.cursor.step == 4
    assert 3 <= len(restarts(caplog)) <= 6


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_workers_that_die_in_their_start(context: str, caplog: Any) -> None:
    """Workers that die in their start are not started forever."""
    dataset, setup = (data.Augmented(), EndsAtStart()) if context == "fork" else (EndsWhenUnpickled(), None)
    source = DataLoader(dataset, batch_size=3, num_workers=2, worker_init_fn=setup, multiprocessing_context=context)
    with pytest.raises(WorkerError, match=r"died repeatedly(?s:.)*exit code 1\n"):
        next(iter(resumable.wrap(source, on_worker_death="restart")))
    assert len(restarts(caplog)) == 3


def test_death_in_the_middle_of_a_start(unharmed: Callable[..., Steps], monkeypatch: pytest.MonkeyPatch) -> None:
    """A death in the middle of a start leaves nothing in torch's list."""
    interrupted: list[int] = []
    begun: list[int] = []

    def begin(known: int, pids: tuple[int, ...]) -> None:
        begun.append(known)
        torch._C._set_worker_pids(known, pids)

    def handler_is_set() -> None:
        if not interrupted:
            interrupted.append(1)
            strike(0)
            raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Hangup.")

    expected = unharmed("indexed")
    monkeypatch.setattr("torch.utils.data._utils.signal_handling._set_SIGCHLD_handler", handler_is_set)
    monkeypatch.setattr("torch.utils.data._utils.signal_handling._set_worker_pids", begin)
    assert steps_of(wrap()) == expected
    assert interrupted
    for known in begun:
        with pytest.raises(ValueError, match="Cannot find worker information"):
            torch._C._remove_worker_pids(known)


def test_an_error_of_a_sample_stays_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    source = DataLoader(data.Augmented(broken=7), batch_size=3, num_workers=2)
    with pytest.raises(OSError, match="torn file"):
        list(resumable.wrap(source, on_worker_death="restart"))
    assert not restarts(caplog)


# ------------------------------------------------------------------ memory, and limits


def test_every_second_kill_takes_a_worker_away(unharmed: Callable[..., Steps], caplog: Any) -> None:
    """The order and the randomness stay; a stream keeps its workers, as they belong to it."""
    counts = []

    def harm(step: int) -> None:
        counts.append(len(workers()))
        if step < 8:
            strike(step, signal.SIGKILL)

    steps = steps_of(wrap(persistent_workers=True), harm)
    assert [step[:2] for step in steps] == [step[:2] for step in unharmed("indexed")]
    said = [text for text in restarts(caplog) if "from now on, in case memory is short" in text]
    assert len(said) == 1
    assert "restarted (1 from now on" in said[0]
    assert [counts[0], counts[-1]] == [2, 1]
    caplog.clear()
    expected = unharmed("stream", persistent_workers=True)
    assert steps_of(wrap("stream", persistent_workers=True), lambda s: strike(s, signal.SIGKILL)) == expected
    assert restarts(caplog)
    assert "from now on" not in "".join(restarts(caplog))


@pytest.mark.parametrize("source", [range(6), lambda: iter(range(6))], ids=["sequence", "generator"])
def test_a_source_without_workers_refuses_it(source: Any) -> None:
    with pytest.raises(UnsupportedError, match="the option on_worker_death does not fit a source"):
        resumable.wrap(source, on_worker_death="restart")
    assert list(resumable.wrap(source, on_worker_death="error")) == list(range(6))


def test_a_wrong_value_is_refused_and_no_workers_is_no_mistake() -> None:
    with pytest.raises(ConfigurationError, match="on_worker_death must be one of error, restart, but it is 'ignore'"):
        wrap(on_worker_death="ignore")
    assert steps_of(wrap(workers=0)) == steps_of(wrap(workers=0, on_worker_death="error"))


# ------------------------------------------------------------------ at random

FEW = 9
MANY = 1000


@pytest.mark.parametrize(
    "seed", [*range(FEW), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(FEW, MANY))]
)
def test_workers_killed_and_stopped_at_random(seed: int, unharmed: Callable[..., Steps], caplog: Any) -> None:
    """At random moments, wherever the training process and its workers are then."""
    caplog.set_level(logging.WARNING)
    chance = random.Random(seed)
    kind, persistent = chance.choice(list(SOURCES)), chance.random() < 0.5
    stops, prefetch = chance.random() < 0.2, chance.choice([1, 2, 4])
    expected = unharmed(kind, persistent_workers=persistent)
    loader = wrap(kind, persistent_workers=persistent, prefetch_factor=prefetch, timeout=TIMEOUT if stops else 0)
    done: list[int] = []

    def harm(*_: Any) -> None:
        pids = workers()
        if pids:
            number = signal.SIGSTOP if stops and not done else chance.choice([signal.SIGKILL, signal.SIGHUP])
            done.append(number)
            for pid in pids if chance.random() < 0.2 else [chance.choice(pids)]:
                os.kill(pid, number)
        if len(done) < 3:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.001, 0.1))

    before = signal.signal(signal.SIGALRM, harm)
    signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.001, 0.1))
    try:
        assert steps_of(loader) == expected
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        loader.close()
