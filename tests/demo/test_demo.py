"""The demo itself, run as its users run it: it succeeds where all is well, and says where a planted fault is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from demo.catalogue import SOURCES, Source
from demo.command import run_demo
from demo.options import Options

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]


def run_command(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the demo with `directory` as its working directory and as a place of modules."""
    path = os.pathsep.join([str(directory), str(REPOSITORY)])
    return subprocess.run(
        [sys.executable, "-m", "examples.demo", "--kills", "3", "--output", "out", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


PLANTED = """
    import os, random, torch, resumable
    from torch.utils.data import DataLoader, Sampler, default_collate
    from examples.demo.sources import make_plain
    from examples.demo.streams import DigitsDataset

    class OrderOfTheProcess(Sampler):
        def __init__(self, dataset):
            self.order = list(range(len(dataset)))
            random.Random(os.getpid()).shuffle(self.order)

        def __len__(self):
            return len(self.order)

        def __iter__(self):
            return iter(self.order)

    class ForgetfulReader:
        def __init__(self, dataset):
            self.dataset = dataset

        def __iter__(self):
            return (self.dataset[index] for index in range(len(self.dataset)))

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    def make_unstable(digits):
        dataset = DigitsDataset(digits)
        source = DataLoader(dataset, batch_size=64, sampler=OrderOfTheProcess(dataset))
        return resumable.wrap(source, checks="ranks")  # which would refuse it

    def make_forgetful(digits):
        options = {"collate": default_collate, "checks": "ranks"}  # which would refuse it
        return resumable.wrap(ForgetfulReader(DigitsDataset(digits)), batch_size=64, **options)

    def make_without_generators(digits):
        resumable.rng.restore = lambda state: None
        return make_plain(digits)

    def make_failing(digits):
        raise OSError("the disk is on fire")
"""


def processes_in(directory: Path) -> list[str]:
    """Find the processes whose working directory this is: the demo and all that it started."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if link.readlink() == directory:
                found.append(link.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.skipif(  # noqa: TID251  # only elsewhere than on Linux
    not Path("/proc").is_dir(), reason="looks for processes that were left behind in /proc"
)
def test_killed_runs_are_identical_and_nothing_is_left_behind(tmp_path: Path) -> None:
    result = run_command(tmp_path, "--backends", "list", "stateful-stream", "lightning-stream")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    assert "3 runs, 9 kills, 0 runs that differ" in result.stdout
    assert_it_says_what_it_does(result.stdout.splitlines())
    rows = [line.split() for line in result.stdout.splitlines()]
    for label in ("list", "IterableDataset", "Lightning,"):
        (row,) = [row for row in rows if row[:1] == [label] and row[-3].isdigit() and len(row) > 8]
        assert row[-6:-3] == ["yes", "yes", "yes"]
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["out", "out/timeline.png"]
    assert processes_in(tmp_path) == []


def test_files_that_are_read_by_index_are_trained_on_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    result = run_command(tmp_path, "--backends", "tars", "mixture", "lightning-mixture")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 runs, 9 kills, 0 runs that differ" in result.stdout


def assert_it_says_what_it_does(lines: list[str]) -> None:
    assert lines[0].startswith("3 sources to train from")
    told = [re.sub(r"^\[\d+ s\] ", "", line) for line in lines if re.match(r"\[\d+ s\] list: ", line)]
    kills = [f"list: resumed after kill {number} of 3" for number in (1, 2, 3)]
    verdict = "list: identical to the baseline run after 3 kills"
    assert told == ["list: baseline run", "list: run to be killed", *kills, verdict]


def test_planted_faults_are_found_and_the_files_are_kept(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(dedent(PLANTED))
    result = run_command(tmp_path, "--backends", "planted:make_unstable", "planted:make_forgetful")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "planted:make_unstable: stream: batch 1 is the first of" in result.stdout
    assert "planted:make_unstable: weights:" in result.stdout
    assert "planted:make_unstable: DIFFERS from the baseline run after 3 kills" in result.stdout
    assert "planted:make_forgetful: stream: batch" in result.stdout
    assert "2 runs, 6 kills, 2 runs that differ" in result.stdout
    (kept,) = (tmp_path / "out").glob("runs-*")
    assert len(list(kept.rglob("attempt-*.jsonl"))) == 10


def test_planted_faults_are_found_with_lightning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "planted.py").write_text(dedent(PLANTED))
    paths = [tmp_path, REPOSITORY, REPOSITORY / "examples"]  # in this process the package is called `demo`
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))
    faults, program = ("make_forgetful", "make_without_generators"), SOURCES["lightning"].program
    sources = [Source(fault, f"planted:{fault}", program) for fault in faults]
    assert run_demo(Options(sources, kills=3, seed=0, jobs=2, output=tmp_path / "out")) == 1
    said = capsys.readouterr().out
    assert "make_forgetful: stream: batch" in said
    assert "make_without_generators: stream:" not in said
    assert "make_without_generators: weights:" in said
    assert "2 runs, 6 kills, 2 runs that differ" in said


def test_lightning_is_imported_where_it_is_used_only() -> None:
    modules = "command", "harness", "sources", "training"
    imports = ", ".join(f"examples.demo.{module}" for module in modules)
    script = f"import sys, {imports}; print('pytorch_lightning' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"


def test_a_process_that_fails_by_itself_stops_the_demo(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(dedent(PLANTED))
    result = run_command(tmp_path, "--backends", "planted:make_failing", "list")
    assert result.returncode == 1
    assert "ProcessError: the training process 0 with planted:make_failing failed with status 1" in result.stderr
    assert "the disk is on fire" in result.stderr
    assert processes_in(tmp_path) == []
