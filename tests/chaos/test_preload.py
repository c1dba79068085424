"""Starts that are forked from a process with its modules imported: as if each had been started by itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import resumable
from resumable.chaos.campaign import survey
from resumable.chaos.launch.group import Group
from resumable.chaos.launch.preload import Preload, check_preload
from resumable.chaos.launch.runner import Command
from resumable.errors import ConfigurationError
from resumable.failpoints import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL = [sys.executable, str(Path(__file__).parent / "scripts" / "small_loop.py")]
PATIENCE = 120.0  # seconds, for a machine that is busy

PROGRAM = """
import json, os, random, sys
import numpy as np
print(json.dumps({
    "arguments": sys.argv[1:], "place": os.getcwd(), "variable": os.environ["VARIABLE"], "name": __name__,
    "draws": [random.random(), np.random.random()], "hash": hash("a"), "leads": os.getsid(0) == os.getpid(),
    "path": sys.path[0], "loaded": "json" in sys.modules,
}))
sys.exit(int(sys.argv[1]))
""".replace("VARIABLE", VARIABLE)


@pytest.fixture(scope="module")
def preload() -> Iterator[Preload]:
    with Preload(["numpy", "json"]) as made:
        yield made


def run(preload: Preload, words: list[str], directory: Path, number: int = 0) -> tuple[int, str]:
    output = directory / f"output-{time.monotonic_ns()}"
    environment = {VARIABLE: str(directory / "plan.json")}
    with Group([sys.executable, *words], directory, environment, output, preload=preload.server(number)) as group:
        status, _ = group.wait(lambda: "")
    return status, output.read_text()


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan in which nothing happens."""
    (tmp_path / "plan.json").write_text(
        json.dumps({"attempt": 0, "directory": str(tmp_path), "case": str(tmp_path), "faults": []})
    )
    return tmp_path


def test_a_forked_program_is_like_one_that_was_started(preload: Preload, plan: Path) -> None:
    (plan / "program.py").write_text(PROGRAM)
    found = [run(preload, [str(plan / "program.py"), "3", "more"], plan, number) for number in range(3)]
    assert [status for status, _ in found] == [3, 3, 3]
    first, second, third = (json.loads(printed) for _, printed in found)
    assert first["arguments"] == ["3", "more"]
    assert first["place"] == first["path"] == str(plan)
    assert first["variable"] == str(plan / "plan.json")
    assert first["name"] == "__main__"
    assert first["leads"]
    for draws in zip(*(one["draws"] for one in (first, second, third)), strict=True):
        assert len(set(draws)) == 3  # without a seed no two starts are alike, not even two of one server
    assert first["hash"] == third["hash"] != second["hash"]


def test_server_imports_more_at_once(preload: Preload, plan: Path) -> None:
    """A server imports more for a start that is requested at once.

    The two requests come together, and the second is not overlooked.
    """
    (plan / "more.py").write_text("import sys; print('colorsys' in sys.modules)")
    assert run(preload, [str(plan / "more.py")], plan) == (0, "False\n")
    preload.server(0).load(["colorsys"])
    assert run(preload, [str(plan / "more.py")], plan) == (0, "True\n")


def test_a_module_can_be_run_and_its_end_is_told(preload: Preload, plan: Path) -> None:
    (plan / "fails.py").write_text("raise ValueError('on purpose')")
    (plan / "dies.py").write_text("import os; os.kill(os.getpid(), 9)")
    status, printed = run(preload, ["-m", "fails"], plan)
    assert status == 1
    assert "ValueError: on purpose" in printed
    assert run(preload, ["-m", "dies"], plan)[0] == -signal.SIGKILL


def test_what_a_forked_program_starts_is_killed_with_it(preload: Preload, plan: Path) -> None:
    code = "import os, time\nprint(os.fork(), flush=True)\ntime.sleep(600)\n"
    (plan / "parent.py").write_text(code)
    output = plan / "output"
    environment = {VARIABLE: str(plan / "plan.json")}
    words = [sys.executable, str(plan / "parent.py")]
    with Group(words, plan, environment, output, preload=preload.server(1)) as group:
        wait_until(lambda: len(output.read_text().splitlines()) == 2)
        children = [int(line) for line in output.read_text().split()]
        status, reason = group.wait(lambda: "long enough")
    assert (status, reason) == (-signal.SIGKILL, "long enough")
    assert not any(lives(child) for child in children if child)


def lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: object) -> None:
    assert callable(condition)
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_a_campaign_comes_out_as_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = resumable.chaos.run([*SMALL, "--other-data"], points=3)
    forked = resumable.chaos.run([*SMALL, "--other-data"], points=3, preload="numpy", jobs=2)
    assert [one.violations for one in forked.outcomes] == [one.violations for one in plain.outcomes]
    assert forked.baseline.ranks[0].points == plain.baseline.ranks[0].points
    assert not forked.ok


@pytest.mark.slow
def test_workers_that_are_spawned_are_workers(tmp_path: Path) -> None:
    """Their points are not those of the loop, in which they come in another order each time."""
    script = tmp_path / "train.py"
    script.write_text(SPAWNING)
    found = survey(Command((sys.executable, str(script))), tmp_path / "baseline", (1,))[1]
    assert found.worker_points[0] == "worker.start"
    assert "worker.read" in found.worker_points
    assert not [point for point in found.points if point.startswith("worker.")]


SPAWNING = """
import numpy as np
from torch.utils.data import DataLoader

import resumable

if __name__ == "__main__":
    workers = {"num_workers": 1, "multiprocessing_context": "spawn"}
    loader = resumable.wrap(DataLoader(np.arange(8), batch_size=4, **workers))
    store = resumable.CheckpointStore("checkpoints")
    for batch in loader:
        store.save(loader.global_step, loader.state_dict())
"""


@pytest.mark.slow
def test_what_cannot_be_forked_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_preload(["sleep", "1"], [])
    for words in (["sleep", "1"], [sys.executable, "-c", "pass"], [sys.executable], [sys.executable, "-m"]):
        with pytest.raises(ConfigurationError, match=r"preload can only fork programs of this Python"):
            check_preload(words, ["numpy"])
    with pytest.raises(ConfigurationError, match=r"the modules of preload ended; its error is shown above"):
        resumable.chaos.run(SMALL, preload=["no_such_module"])


@pytest.mark.slow
def test_nothing_outlives_a_chaos_run_that_is_killed(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "resumable",
        "chaos",
        "run",
        "--preload",
        "numpy",
        "--directory",
        "chaos",
        "--",
        *SMALL,
    ]
    harness = subprocess.Popen([*words, "--slow"], cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True)
    ledgers = tmp_path / "chaos" / "baseline" / "0" / "attempt-0"
    wait_until(lambda: any(ledgers.glob("events-*.jsonl")))
    process = int(next(ledgers.glob("events-*.jsonl")).stem.partition("-")[2])
    assert lives(process)
    harness.send_signal(signal.SIGKILL)
    assert harness.wait(PATIENCE) == -signal.SIGKILL
    wait_until(lambda: not lives(process))
    assert os.getpid() != process
