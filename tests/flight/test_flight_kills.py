"""Processes that are killed: what the flight recorder says, and what they wrote down themselves before they died."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flight_run import BATCH, LENGTH, TOTAL, load, wrap

import resumable
from resumable import flight

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("flight_run.py")
HERE = [
    ("reading", 0, 0),
    ("reading", 1, 4),
    ("training", 0, 0),
    ("training", 1, 3),
    ("state", 0, 2),
    ("state", 1, 5),
    ("between", 0, TOTAL),
    ("between", 1, TOTAL),
]
WORKERS = [("reading", 0, 4), ("training", 0, 3), ("state", 0, 5), ("between", 0, TOTAL)]
CASES = [(0, case) for case in HERE] + [(2, case) for case in WORKERS]
RARELY = [
    (0, HERE[0]),
    (0, HERE[2]),
    (0, HERE[4]),
    (0, HERE[7]),
    (2, WORKERS[2]),
]  # their phase is in another epoch, too
AT = {
    "reading": "in epoch {}, step {}, while reading",
    "training": "in epoch {}, step {}, while training",
    "state": "in epoch {}, step {}, after a state was saved",
    "between": "after {1} steps of epoch {0}, between epochs",
}


def die(folder: Path, workers: int, phase: str, epoch: int, step: int) -> list[dict[str, Any]]:
    """Let a training kill itself, and return what it wrote down."""
    child = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), str(workers), phase, str(epoch), str(step)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert child.returncode == -9, child.stderr
    return [json.loads(line) for line in (folder / "truth").read_text().splitlines()]


def next_start(folder: Path, workers: int, caplog: pytest.LogCaptureFixture) -> str:
    """Start the training again, up to its first batch, and return what it logs."""
    loader = wrap(list(range(LENGTH)), folder, workers)
    with caplog.at_level(logging.INFO, "resumable"):
        load(loader, folder)
        next(iter(next(loader.epochs(3))))
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)


@pytest.mark.parametrize(
    ("workers", "fatal"),
    [pytest.param(*case, marks=[pytest.mark.long] * (case in RARELY)) for case in CASES],
    ids=str,
)
def test_it_says_where_the_process_was_killed(
    workers: int, fatal: tuple[str, int, int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    phase, epoch, step = fatal
    truth = die(tmp_path, workers, phase, epoch, step)
    trained = sum(line["phase"] == "training" for line in truth)
    (record,) = flight.read(tmp_path / "flight")
    assert {"phase": record.phase, "epoch": record.epoch, "step": record.step}.items() <= truth[-1].items()
    assert (record.phase, record.epoch, record.step) == (phase, epoch, step)
    assert record.delivered == trained
    assert record.crashed
    assert record.status == "killed"

    saved = TOTAL * epoch + step // 3 * 3 if phase != "state" else TOTAL * epoch + step + 1
    state = json.loads((tmp_path / "state").read_text()) if saved else None
    loaded = state["global_step"] if state else 0
    told = next_start(tmp_path, workers, caplog)
    samples = resumable.wrap(list(range(LENGTH)), batch_size=BATCH, shuffle=True)
    fatal_one = samples.sample_indices(epoch=epoch, step=step)[1] if phase == "reading" else None
    assert record.sample == (None if workers else fatal_one)
    where = AT[phase].format(epoch, step) + ("" if record.sample is None else f" sample {fatal_one}")
    steps = "1 step is" if trained - loaded == 1 else f"{trained - loaded} steps are"
    said = (
        f"(rank 0, pid {record.pid}) crashed {where}; this one starts at global step {loaded}: {steps} trained again."
    )
    assert said in told


@pytest.mark.parametrize("how", ["os._exit(0)", "ctypes.string_at(0)"])
def test_the_sample_that_ends_its_process_in_any_way_is_named(how: str, tmp_path: Path) -> None:
    script = (
        "import ctypes, os, sys, resumable\n"
        "class Data(list):\n"
        f"    def __getitem__(self, index): return index if index != 5 else {how}\n"
        "list(resumable.wrap(Data(range(9)), batch_size=3, flight_recorder=sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, capture_output=True)
    (record,) = flight.read(tmp_path)
    assert (record.status, record.where) == ("killed", "in epoch 0, step 1, while reading sample 5")


FAST = """
import itertools, sys, resumable
loader = resumable.wrap(list(range(35)), batch_size=5, flight_recorder=sys.argv[1])
for epoch in loader.epochs(10**9):
    for batch in epoch:
        if loader.cursor.step % 3 == 0:
            loader.state_dict()
    if epoch == 30:
        print("now", flush=True)
"""


def test_a_record_is_whole_whenever_the_process_is_killed(tmp_path: Path) -> None:
    seen = set()
    for _ in range(8):
        child = subprocess.Popen([sys.executable, "-c", FAST, str(tmp_path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        for _ in range(20):  # while it runs
            (record,) = flight.read(tmp_path)
            assert record.global_step == record.epoch * 7 + record.step
        child.kill()
        child.wait()
        child.stdout.close()
        (record,) = flight.read(tmp_path)
        assert (record.pid, record.status) == (child.pid, "killed")
        assert record.global_step == record.epoch * 7 + record.step
        seen.add((record.epoch, record.step, record.phase))
    assert len(seen) > 1


ENDS = {
    "cleanly": "pass",
    "cleanly, by exit": "sys.exit(3)",
    "cleanly, without the loader": "del loader, batches; os.kill(os.getpid(), 9)",
    "raised": "1 / 0",
    "raised, by the user": "raise KeyboardInterrupt",
    "running": "os._exit(0)",
    "running, by SIGTERM": "os.kill(os.getpid(), 15)",
}


@pytest.mark.parametrize("end", ENDS)
def test_how_a_process_ended_is_known(end: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    script = "import os, sys, resumable; loader = resumable.wrap(list(range(9)), flight_recorder=sys.argv[1]); "
    script += f"batches = iter(loader); next(batches); next(batches); {ENDS[end]}"
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, capture_output=True)
    (record,) = flight.read(tmp_path)
    assert record.ended == end.partition(",")[0]
    assert record.crashed is not end.startswith("cleanly")
    with caplog.at_level(logging.INFO, "resumable"):
        next(iter(resumable.wrap(list(range(9)), flight_recorder=tmp_path)))
    (told,) = [record for record in caplog.records if "2 steps are trained again" in record.message]
    assert told.levelno == (logging.INFO if not record.crashed else logging.WARNING)
    how = {"cleanly": "ended cleanly", "raised": "ended with an exception", "running": "crashed"}[record.ended]
    assert (
        f"{how} in epoch 0, step 1, while training; this one starts at global step 0: 2 steps are trained again."
        in told.message
    )


def test_a_fork_does_not_end_the_record_of_its_parent(tmp_path: Path) -> None:
    script = (
        "import os, sys, resumable; loader = resumable.wrap(list(range(9)), flight_recorder=sys.argv[1])\n"
        "batches = iter(loader); next(batches)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    loader.seek(epoch=0, step=5); next(iter(loader)); sys.exit()\n"
        "os.waitpid(pid, 0); (record,) = resumable.flight.read(sys.argv[1]); print(record.where, record.status)"
    )
    child = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True, text=True)
    assert child.stdout == "in epoch 0, step 0, while training running\n"
    assert "which is alive, also records there as rank 0" in child.stderr


HOLD = """
import sys, resumable
loader = resumable.wrap(list(range(9)), flight_recorder=sys.argv[1])
next(iter(loader))
print("now", flush=True)
sys.stdin.read()
"""


def test_a_process_that_is_alive_keeps_its_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdout.readline()
    second = resumable.wrap(list(range(9)), flight_recorder=tmp_path)
    assert list(second) == list(range(9)), "nothing stops the training"
    assert f"the process {child.pid}, which is alive, also records there as rank 0" in caplog.text
    (record,) = flight.read(tmp_path)
    assert (record.pid, record.step, record.status) == (child.pid, 0, "running")
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()
    caplog.clear()
    next(iter(resumable.wrap(list(range(9)), flight_recorder=tmp_path)))
    assert f"pid {child.pid}) crashed in epoch 0, step 0, while training" in caplog.text
