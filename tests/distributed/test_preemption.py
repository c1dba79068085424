"""resumable.preemption(): all ranks stop after one step, with one checkpoint, and go on from there."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from forked import ranks, step_together
from preempted import STEPS, forked, seen, stops

import resumable
from resumable.distributed.preemption import EXIT_CODE
from resumable.errors import ConfigurationError, PreemptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

SCRIPT = Path(__file__).with_name("preempted.py")
PROJECT = Path(__file__).parents[2]
ASKED = [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT]


# ---------------------------------------------------------------------- one process


@pytest.mark.parametrize("number", ASKED)
def test_a_signal_is_a_flag_that_the_loop_sees(number: int) -> None:
    with resumable.preemption() as stop:
        assert not stop.reached(1)
        assert not stop.received
        signal.raise_signal(number)
        assert stop.received == number
        assert stop.reached(2)
        assert stop.reached(2)
        with pytest.raises(SystemExit) as caught:
            stop.exit()
    assert caught.value.code == EXIT_CODE == os.EX_TEMPFAIL == 75


def test_the_second_interrupt_is_at_once() -> None:
    with resumable.preemption() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert stop.reached(1)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def handlers() -> Iterator[list[int]]:
    """Own handlers of all signals, which note what they get, and have to be there at the end."""
    got: list[int] = []
    own: Callable[..., Any] = lambda number, frame: got.append(number)  # noqa: E731
    before = [signal.signal(number, own) for number in ASKED]
    try:
        yield got
        assert [signal.getsignal(number) for number in ASKED] == [own] * 3
    finally:
        for number, handler in zip(ASKED, before, strict=True):
            signal.signal(number, handler)


@pytest.mark.parametrize("error", [None, ValueError("mine"), SystemExit(75)])
def test_the_handlers_before_are_put_back(error: BaseException | None) -> None:
    with handlers() as got:
        with contextlib.suppress(ValueError, SystemExit), resumable.preemption() as stop:
            signal.raise_signal(signal.SIGTERM)
            if error is not None:
                raise error
        assert (got, stop.received) == ([], signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert got == [signal.SIGTERM]


def test_only_the_signals_that_were_given_are_taken() -> None:
    with handlers() as got, resumable.preemption([signal.SIGUSR1]) as stop:
        signal.raise_signal(signal.SIGTERM)
        assert (got, stop.received) == ([signal.SIGTERM], None)


def test_nested_blocks_restore() -> None:
    """Nested blocks all see it, and each restores the value before."""
    with handlers(), resumable.preemption() as outer:
        with resumable.preemption([signal.SIGUSR1]) as inner:
            assert not inner.reached(1)
            signal.raise_signal(signal.SIGUSR1)
            assert inner.reached(2)
        assert outer.reached(5)
        with resumable.preemption() as later:
            assert not later.reached(1), "it was not there when the signal came"
            signal.raise_signal(signal.SIGTERM)
        assert (outer.received, later.received) == (signal.SIGTERM, signal.SIGTERM)


def test_a_thread_may_ask_and_cannot_enter() -> None:
    found: list[Any] = []

    def enter() -> None:
        try:
            with resumable.preemption():
                pass
        except ConfigurationError as error:
            found.append(str(error))

    with handlers(), resumable.preemption() as stop:
        for work in (enter, lambda: found.append(stop.reached(1))):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    assert "main thread" in found[0]
    assert found[1] is False


@pytest.mark.parametrize("number", ASKED[:2])
def test_a_fork_ends_by_the_signal_as_ever(number: int) -> None:
    """Or `Process.terminate()` would not end it, and the end of the program would wait for it for ever."""
    with resumable.preemption() as stop:
        if (child := os.fork()) == 0:
            signal.raise_signal(number)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -number
        assert not stop.reached(1)


@pytest.mark.parametrize("margin", [0, -1, 1.5, True])
def test_a_margin_is_a_positive_number(margin: Any) -> None:
    with pytest.raises(ConfigurationError, match="margin"):
        resumable.preemption(margin=margin)


def test_steps_only_grow() -> None:
    with resumable.preemption() as stop:
        stop.reached(5)
        stop.reached(5)
        with pytest.raises(ConfigurationError, match=r"(?s)backwards.*previous call: 5\n.*this call: +4"):
            stop.reached(4)


def start(
    root: Path, *given: Any, command: Sequence[str] = (sys.executable,), env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start the training in a session of its own, and wait until it has done two steps."""
    (root / "pid-0").unlink(missing_ok=True)
    process = subprocess.Popen(
        [*command, str(SCRIPT), str(root), *map(str, given)],
        cwd=PROJECT,
        env={**os.environ, **(env or {})},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + 120
    while not (root / "pid-0").exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    return process


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors


METHODS = [pytest.param("fork"), pytest.param("spawn", marks=pytest.mark.long)]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_signal_to_all_processes(tmp_path: Path, method: str) -> None:
    """A signal to all processes of a job lets the workers live.

    As SLURM sends it; a worker that ended by it would end the training before its checkpoint.
    """
    first = start(tmp_path, 2, method)
    os.killpg(first.pid, signal.SIGTERM)
    assert finish(first) == (EXIT_CODE, "")
    (stopped,) = stops(tmp_path)
    second = start(tmp_path, 2, method)
    assert finish(second) == (0, "")
    assert stopped < STEPS
    assert [step for step, *_ in seen(tmp_path)] == list(range(1, STEPS + 1))
    (golden := tmp_path / "golden").mkdir()
    assert finish(start(golden)) == (0, "")
    assert seen(tmp_path) == seen(golden)


# ---------------------------------------------------------------------- SLURM


@pytest.mark.slow
def test_slurm_is_asked_to_start_the_job_again(tmp_path: Path) -> None:
    """A stand-in for `scontrol` notes what it was asked; SLURM itself is not there."""
    command = tmp_path / "scontrol"
    command.write_text(f"#!/bin/sh\necho $@ >> {tmp_path}/asked\nexit ${{STATUS:-0}}\n")
    command.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    jobs: list[tuple[dict[str, str], str]] = [
        ({"SLURM_JOB_ID": "17"}, ""),
        (
            {"SLURM_JOB_ID": "18", "SLURM_ARRAY_JOB_ID": "16", "SLURM_ARRAY_TASK_ID": "2", "STATUS": "3"},
            "with status 3",
        ),
        ({"SLURM_JOB_ID": "19", "PATH": os.environ["PATH"]}, "scontrol was not found"),
    ]
    for number, (variables, said) in enumerate(jobs):
        (root := tmp_path / str(number)).mkdir()
        process = start(root, env={"PATH": path, **variables})
        process.send_signal(signal.SIGUSR1)
        code, errors = finish(process)
        assert code == EXIT_CODE
        assert said in errors if said else not errors
    assert (tmp_path / "asked").read_text() == "requeue 17\nrequeue 16_2\n"


# ---------------------------------------------------------------------- several ranks


def signalling(root: Path, who: list[int], delay: float) -> int:
    """Send SIGTERM to some ranks after a while, from another process; a thread would be copied by the forks."""
    if (child := os.fork()) == 0:
        pids: list[int] = []
        end = time.monotonic() + 60
        while len(pids) < len(who) and time.monotonic() < end:
            with contextlib.suppress(FileNotFoundError, ValueError):
                pids = [int((root / f"pid-{rank}").read_text()) for rank in who]
            time.sleep(0.002)
        time.sleep(delay)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        os._exit(0)
    return child


def campaign(root: Path, seed: int) -> int:
    """Preempt a training of three ranks until it is done, and compare it with the baseline; count the stops."""
    rng, count = random.Random(seed), 0
    for start in range(30):
        who = rng.sample(range(3), rng.choice([1, 2, 3]))
        for rank in range(3):
            (root / f"pid-{rank}").unlink(missing_ok=True)
        child = signalling(root, who, rng.uniform(0, 0.25))
        results = ranks(3, forked, root)
        os.kill(child, signal.SIGKILL)  # the run may have been over before
        os.waitpid(child, 0)
        assert results in ([EXIT_CODE] * 3, ["done"] * 3), (start, who, results)
        assert stops(root, 0) == stops(root, 1) == stops(root, 2)
        if results == ["done"] * 3:
            break
        count += 1
    assert results == ["done"] * 3
    return count


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_ranks_preempted_at_random_moments(tmp_path: Path, seed: int) -> None:
    """One, two or all of three ranks are preempted at random moments."""
    (golden := tmp_path / "golden").mkdir()
    assert ranks(3, forked, golden) == ["done"] * 3
    (root := tmp_path / "run").mkdir()
    assert campaign(root, seed) >= 1
    for rank in range(3):
        assert seen(root, rank) == seen(golden, rank), "a step was lost, repeated or changed"


def apart(rank: int, size: int, given: dict[int, list[int]]) -> list[Any]:
    """Ask with the steps of each rank in turns, so that the order is given; rank 0 has the signal at its second."""
    from torch import distributed  # noqa: PLC0415  # in the rank

    said: list[Any] = []
    with resumable.preemption() as stop:
        for turn in range(max(map(len, given.values()))):
            for one in range(size):
                if one == rank and turn < len(given[rank]):
                    if rank == 0 and turn == 1:
                        signal.raise_signal(signal.SIGTERM)
                    try:
                        said.append(stop.reached(given[rank][turn]))
                    except PreemptionError as error:
                        said.append(str(error))
                distributed.barrier()
    return said


@pytest.mark.slow
def test_the_answers_of_ranks_by_turns() -> None:
    assert ranks(2, apart, {0: [1, 2, 3, 4, 5], 1: [1, 2, 3, 4, 5]}) == [[False] * 3 + [True] * 2] * 2
    # one rank is a step ahead
    assert ranks(2, apart, {0: [1, 2, 3, 4], 1: [2, 3, 4, 4]}) == [[False] * 3 + [True], [False] * 2 + [True] * 2]
    # steps with gaps, as of a loop that asks at every fifth
    assert ranks(2, apart, {0: [5, 10, 15, 20], 1: [5, 10, 15, 20]}) == [[False] * 3 + [True]] * 2


@pytest.mark.slow
def test_rank_past_the_step_does_not_save() -> None:
    """A rank that has passed the step raises and does not save."""
    ahead, behind = ranks(2, apart, {0: [1, 2, 3, 4], 1: [5, 6, 7, 8]})
    assert ahead == [False, False, False, True]
    assert behind[0] is False
    assert "rank 1 has passed the step" in behind[1]
    assert "agreed step: 4\n  this rank:   6\n" in behind[1]
    assert "margin=2" in behind[1]


def asks_late(rank: int, size: int) -> list[bool]:
    with resumable.preemption() as stop:
        said = [stop.reached(1)]
        step_together()
        time.sleep(0.3 + rank)  # all have met, and rank 0 ends first
        if rank:
            said.append(stop.reached(2))
            os.kill(os.getpid(), signal.SIGTERM)
            said += [stop.reached(3), stop.reached(5)]
        return said


@pytest.mark.slow
def test_last_rank_survives_the_end_of_the_store() -> None:
    """The last rank is not stopped by the end of the rank that hosts the store."""
    assert ranks(2, asks_late, host_stays=False) == [[False], [False] * 4]


@pytest.mark.slow
def test_under_torchrun_the_agent_forwards_sigterm_and_waits(tmp_path: Path) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    variables = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    agent = start(tmp_path, command=torchrun, env=variables)
    agent.send_signal(signal.SIGTERM)
    code, errors = finish(agent)
    assert code != 0
    assert "SignalException" in errors
    assert stops(tmp_path, 0) == stops(tmp_path, 1) != []
    agent = start(tmp_path, command=torchrun, env=variables)
    assert finish(agent)[0] == 0
    for rank in range(2):
        assert [step for step, *_ in seen(tmp_path, rank)] == list(range(1, STEPS + 1))
