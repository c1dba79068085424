"""`resumable chaos`: from the command line to the exit status, with training processes that are really killed."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import resumable
from resumable._processes import living_members
from resumable.chaos.api import check_kinds, check_points, check_words, choose_ranks
from resumable.chaos.launch.group import Group, StoppedError
from resumable.chaos.launch.reaper import Reaper
from resumable.chaos.plan import Fault, Survey, by_the_clock
from resumable.cli import main
from resumable.errors import ConfigurationError
from resumable.failpoints import VARIABLE

SCRIPTS = Path(__file__).parent / "scripts"
SMALL = [sys.executable, str(SCRIPTS / "small_loop.py")]
SLEEP = shutil.which("sleep") or "sleep"
linux = pytest.mark.skipif(  # noqa: TID251  # only elsewhere than on Linux
    not Path("/proc/self/environ").exists(), reason="processes are found by their environment"
)


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")


@pytest.mark.slow
def test_a_correct_script_passes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["chaos", "run", "--points", "2", "--faults", "kill,torn-write", "--", *SMALL]) == 0
    printed = capsys.readouterr()
    assert re.search(r"kill +2 +2 of 2 +4 ", printed.out)
    assert "no case of torn-write" in printed.out
    assert "PASSED: every promise was kept in 2 cases. Seed 0" in printed.out
    assert re.search(r"\n2 cases of 34; about .*; --points all runs them all\.\n", printed.err)
    assert re.search(r"\n1 of 2 cases, 0 failed; .* left\n", printed.err)
    assert max(map(len, (printed.err + printed.out).split("\n"))) <= 60
    assert {path.name for path in Path("runs/chaos").iterdir()} == {
        "campaign.json", "campaign.lock", "report.html", "report.json", "baseline",
    }  # fmt: skip


@pytest.mark.slow
def test_a_broken_promise_exits_with_1_and_can_be_replayed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = resumable.chaos.run([*SMALL, "--other-data"], points=2, directory="chaos", seed=3)
    assert not found.ok
    failed = {outcome.name for outcome in found.failed}
    case = f"chaos/{max(failed)}"
    assert "same content" in found.failed[0].violations
    assert f"again: resumable chaos replay {case}" in found.timeline()
    assert {path.name for path in Path("chaos").glob("0*")} == failed

    capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert main(["chaos", "replay", case]) == 2
    told = r"contains this command, .*\n  .*small_loop\.py --other-data\n.*pass --yes"
    assert re.search(told, capsys.readouterr().err)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    for answer in ("\n", "no\n"):
        sys.stdin.seek(0)
        sys.stdin.truncate()
        sys.stdin.write(answer)
        sys.stdin.seek(0)
        assert main(["chaos", "replay", case]) == 2
        assert "small_loop.py --other-data\nRun it in " in capsys.readouterr().err
    assert not Path(case, "replay").exists()

    assert main(["chaos", "replay", case, "--yes"]) == 1
    printed = capsys.readouterr().out
    assert "trained on different data than the baseline run in epoch 1, step 0: the content of row 0" in printed
    assert "Seed 3" in printed
    assert json.loads(Path(case, "replay/report.json").read_text())["ok"] is False


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*SMALL, "--fail"], r"fails without faults: its exit status is 1.*\n(.*\n)*it fails by itself"),
        ([sys.executable, "-c", "pass"], r"trained on no batch of a resumable loader.*\n.*resumable\.wrap"),
        (["sh", "-c", "echo done"], "trained on no batch of a resumable loader"),
        (
            [sys.executable, "-m", "missing"],
            r"fails without faults(.*\n)*.*No module named missing\n+.*start the command with it",
        ),
        ([sys.executable, "missing.py"], r"fails without faults: its exit status is 2.*\n(.*\n)*.*missing\.py"),
        (["no-such-program"], "the program 'no-such-program' was not found"),
        ([], "no command to run"),
    ],
)
def test_what_cannot_be_tested_exits_with_2_and_no_traceback(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chaos", "run", "--", *words]) == 2
    printed = capsys.readouterr().err
    assert re.search("error: .*" + message, printed)
    assert "Traceback" not in printed


def narrow(text: str) -> bool:
    """Return whether all lines fit into 60 columns, but for those that are one long word, such as a path."""
    return all(len(line) <= 60 or len(line.split()) == 1 for line in text.split("\n"))


@pytest.mark.slow
def test_failed_case_fits_into_60_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed case fits into 60 columns, and all is one JSON document."""
    monkeypatch.setenv("COLUMNS", "60")
    words = ["--points", "1", "--", *SMALL, "--other-data"]
    assert main(["chaos", "run", "--junit", "chaos.xml", *words]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("FAILED: a promise was broken in ")
    (suite,) = ET.parse("chaos.xml").getroot()  # noqa: S314  # our own file
    assert "trained on different data" in (suite.findtext("testcase/failure") or "")
    assert suite.get("tests") == suite.get("failures") == str(len(suite))
    assert narrow(printed.out), printed.out
    assert narrow(printed.err), printed.err
    assert "trained on different data" in " ".join(printed.out.split())
    assert "\x1b" not in printed.out + printed.err
    assert main(["chaos", "replay", "runs/chaos/0001", "--yes", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(Path("runs/chaos/0001/replay/report.json").read_text())
    assert "same content" in found["cases"][0]["violations"]
    assert main(["chaos", "run", "--json", *words]) == 1
    assert json.loads(capsys.readouterr().out) == json.loads(Path("runs/chaos/report.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("preload", ["", "numpy"])
def test_a_module_is_found_from_where_the_command_is_given(preload: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("package").mkdir()
    Path("package/__init__.py").touch()
    Path("package/data.py").write_text("N = 24\n")
    text = Path(SMALL[1]).read_text()
    Path("package/train.py").write_text(text.replace("import resumable\n", "import resumable\nfrom . import data\n", 1))
    words = ["--points", "2", *(["--preload", preload] if preload else [])]
    assert main(["chaos", "run", *words, "--", sys.executable, "-m", "package.train"]) == 0, capsys.readouterr()
    assert "PASSED: every promise was kept in 2 cases" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "message"), [("#!/bin/sh\necho done\n", "trained on no batch"), ("echo done\n", "")])
def test_shell_script_by_its_path(text: str, message: str) -> None:
    """A shell script is run by its path, or rejected in words."""
    script = Path("train.sh")
    script.write_text(text)
    script.chmod(0o755)
    with pytest.raises(ConfigurationError, match=message or r"train\.sh cannot be started: .*\n.*bash train\.sh"):
        resumable.chaos.run(["./train.sh"])


@linux
def test_nobody_belongs_to_no_group() -> None:
    """The kernel's processes have the group 0, and would be killed for it."""
    assert living_members(0) == living_members(0, "NO_SUCH_VARIABLE=1") == []


def test_a_directory_with_something_else_in_it_is_left_alone() -> None:
    Path("mine").mkdir()
    Path("mine/thesis.tex").write_text("all of it")
    with pytest.raises(ConfigurationError, match=r"mine contains thesis\.tex, which no chaos run wrote"):
        resumable.chaos.run(SMALL, directory="mine")
    assert Path("mine/thesis.tex").exists()


@pytest.mark.slow
def test_a_kind_that_cannot_happen_is_no_success() -> None:
    with pytest.raises(
        ConfigurationError, match=r"no case .*: worker-kill: it has no worker processes\.\nNothing would"
    ):
        resumable.chaos.run(SMALL, faults=["worker-kill"])


@pytest.mark.slow
def test_replay_wants_a_case_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"not a case of a chaos run: .*\n.*passed cases are"):
        resumable.chaos.replay("runs/chaos/0001")
    shutil.copy(SCRIPTS / "small_loop.py", "train.py")
    found = resumable.chaos.run([sys.executable, "train.py", "--other-data"], points=2)
    place = found.failed[0].directory
    Path("train.py").write_text(Path("train.py").read_text() + "# mended\n")
    assert any("train.py has changed since the campaign" in note for note in resumable.chaos.replay(place).notes)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match=r"train\.py does not exist in .*\nThe campaign ran in "):
        resumable.chaos.replay(place)


@pytest.mark.slow
def test_the_clock_kills_from_outside(tmp_path: Path) -> None:
    (tmp_path / "once").mkdir()
    began = time.monotonic()
    subprocess.run([*SMALL, "--slow"], cwd=tmp_path / "once", check=True)  # on a machine that may be busy
    fault = by_the_clock(Survey([], [], [], (1,)), 1.0, 2, 1).launches[0].fault
    assert fault is not None
    assert fault.after is not None
    mtbf = 0.5 * (time.monotonic() - began) / fault.after  # so that the first kill comes amid the first start
    found = resumable.chaos.run([*SMALL, "--slow"], mtbf=mtbf, failures=6, seed=1)
    assert found.ok, found.timeline()
    (case,) = found.outcomes
    assert case.fired >= 1
    assert case.starts == case.fired + 1
    assert re.search(r"kill after \d\.\d s", found.timeline())


@pytest.mark.slow
def test_a_clock_that_comes_too_late_is_no_success() -> None:
    with pytest.raises(ConfigurationError, match=r"no failure happened: the first was due after .* s"):
        resumable.chaos.run(SMALL, mtbf=1e6)


def test_the_times_of_the_clock_come_from_the_seed() -> None:
    survey = Survey([], [], [], (2, 1))
    one, same, other = (by_the_clock(survey, 60.0, 400, seed) for seed in (1, 1, 2))
    assert one == same != other
    times = [fault.after for fault in one.faults if fault.after is not None]
    assert len(times) == 400
    assert 50 < sum(times) / len(times) < 70
    assert [launch.ranks for launch in one.launches[:3]] == [2, 1, 2]
    assert str(Fault("kill", 0, after=12.34)) == "kill after 12.3 s"


@pytest.mark.parametrize(
    ("words", "ranks", "resize", "starts"),
    [
        (["python", "train.py"], None, None, (1,)),
        (["torchrun", "--nproc-per-node=4", "train.py"], None, None, (4,)),
        (["torchrun", "--nproc_per_node", "4", "train.py"], None, None, (4,)),
        (["torchrun", "--nproc-per-node=4", "train.py"], 2, None, (2,)),
        (["torchrun", "--nproc-per-node=4", "train.py"], 2, [2, 1, 2], (2, 1, 2)),
        (["python", "train.py", "--devices={ranks}"], None, [2, 1], (2, 1)),
    ],
)
def test_the_number_of_ranks(
    words: list[str], ranks: int | None, resize: list[int] | None, starts: tuple[int, ...], monkeypatch: Any
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name)
    assert choose_ranks(check_words(words), ranks, resize) == starts


@pytest.mark.parametrize(
    ("ranks", "resize", "message"),
    [
        (2, None, r"2 ranks were requested, but the command does not contain .*\n.*\{ranks\}"),
        (2, [1, 2], r"ranks is 2, but resize is \[1, 2\]"),
        (None, [], r"resize is \[\]"),
        (0, None, "a number of ranks is 0"),
    ],
)
def test_ranks_that_cannot_work(ranks: int | None, resize: list[int] | None, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        choose_ranks(["python", "train.py"], ranks, resize)


def test_options_that_cannot_work() -> None:
    assert check_kinds("kill,term,kill") == ("kill", "term")
    with pytest.raises(ConfigurationError, match=r"unknown fault: flood, fire\.\nUse kill, term"):
        check_kinds(["kill", "flood", "fire"])
    with pytest.raises(ConfigurationError, match="faults is empty"):
        check_kinds([])
    assert [check_points(None, by_the_clock=clock) for clock in (False, True)] == ["auto", 0]
    for points in (-1, "some", True):
        with pytest.raises(ConfigurationError, match=f"points is {points!r}"):
            check_points(points, by_the_clock=False)
    for name, value in {"jobs": 0, "pairs": -1, "mtbf": 0.0, "patience": -1.0, "failures": 0, "random": 0.5}.items():
        with pytest.raises(ConfigurationError, match=f"{name} is {value}"):
            resumable.chaos.run(SMALL, **{name: value})  # type: ignore[arg-type]  # that is what is refused
    with pytest.raises(ConfigurationError, match="the command must be a list of words, but it is 'python train"):
        resumable.chaos.run("python train.py")
    assert not Path("runs").exists()


def test_a_watched_process_loads_nothing_of_the_harness() -> None:
    code = "import sys, resumable.chaos.recorder.agent; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.split()
    assert "resumable.chaos.recorder.agent" in loaded
    assert not {"resumable.chaos.api", "resumable.chaos.report", "resumable.chaos.campaign"} & set(loaded)


@linux
def test_processes_in_sessions_of_their_own_are_killed_too(tmp_path: Path) -> None:
    """As torchrun starts its ranks."""
    code = "import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True)"
    environment = {VARIABLE: str(tmp_path / "no-plan")}
    with Group([sys.executable, "-c", code], tmp_path, environment, tmp_path / "out") as group:
        group.wait(lambda: "")
        assert len(marked(tmp_path)) == 1
    assert marked(tmp_path) == []


def marked(directory: Path) -> list[int]:
    """Find the living processes whose plan is in a directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            state = (path.parent / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and f"\0{VARIABLE}={directory}/".encode() in b"\0" + path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_until(condition: Any, patience: float = 120.0) -> None:
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


HEARS_CTRL_C = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and pass that on
runpy.run_module("resumable", run_name="__main__")
"""


@linux
@pytest.mark.parametrize(
    ("number", "status", "running"),
    [
        (signal.SIGKILL, -9, "baseline/0"),
        pytest.param(signal.SIGKILL, -9, "0001", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, "0001", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 130, "0001", marks=pytest.mark.slow),
    ],
)
def test_nothing_outlives_a_chaos_run_that_is_killed(
    number: signal.Signals, status: int, running: str, tmp_path: Path
) -> None:
    words = [sys.executable, "-c", HEARS_CTRL_C, "chaos", "run", "--jobs", "2", "--directory", "chaos", "--", *SMALL]
    harness = subprocess.Popen([*words, "--slow"], stderr=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: any(tmp_path.glob(f"chaos/{running}/attempt-*/events-*.jsonl")) and marked(tmp_path))
    harness.send_signal(number)
    assert harness.wait(120) == status
    wait_until(lambda: not marked(tmp_path) and not living_members(harness.pid))


def test_reaper_forgets_and_stops(tmp_path: Path) -> None:
    """The reaper forgets processes that ended and stops those that wait."""
    environment = {VARIABLE: str(tmp_path / "no-plan")}
    with Reaper() as reaper:
        reaper.stopping.set()
        with (
            pytest.raises(StoppedError),
            Group([SLEEP, "60"], tmp_path, environment, tmp_path / "out", reaper) as group,
        ):
            group.wait(lambda: "")
        bystander = subprocess.Popen([SLEEP, "60"], env={**os.environ, **environment})
    try:
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.slow
def test_torch_loop_survives_faults() -> None:
    """A loop of torch survives faults of its process and of its storage."""
    faults = ["kill", "torn-write", "truncate", "lost-fsync"]
    words = [sys.executable, str(SCRIPTS / "hand_loop.py")]
    found = resumable.chaos.run(words, faults=faults, points=1, pairs=1, jobs=2, preload=["torch", "torch._dynamo"])
    assert found.ok, found.timeline()
    assert not found.notes
    assert len(found.outcomes) == len(faults) + 1
