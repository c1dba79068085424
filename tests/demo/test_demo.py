"""The demo itself, run as its users run it: it succeeds where all is well, and says where a planted fault is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]


def run_demo(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the demo with `directory` as its working directory and as a place of modules."""
    path = os.pathsep.join([str(directory), str(REPOSITORY)])
    return subprocess.run(
        [sys.executable, "-m", "resumable.demo", "--kills", "3", "--output", "out", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


PLANTED = """
    import os, random, torch, resumable
    from torch.utils.data import DataLoader, Sampler, default_collate
    from resumable.demo.streams import DigitsDataset

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
        return resumable.wrap(DataLoader(dataset, batch_size=64, sampler=OrderOfTheProcess(dataset)))

    def make_forgetful(digits):
        return resumable.wrap(ForgetfulReader(DigitsDataset(digits)), batch_size=64, collate=default_collate)

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


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes that were left behind in /proc")
def test_killed_runs_are_identical_and_nothing_is_left_behind(tmp_path: Path) -> None:
    result = run_demo(tmp_path, "--backends", "list", "stateful-stream")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 runs, 6 kills, 0 runs that differ" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines()]
    for label in ("list", "IterableDataset"):
        (row,) = [row for row in rows if row[:1] == [label] and row[-3].isdigit() and len(row) > 8]
        assert row[-6:-3] == ["yes", "yes", "yes"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["timeline.png"]
    assert processes_in(tmp_path) == []


def test_planted_faults_are_found_and_the_files_are_kept(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(dedent(PLANTED))
    result = run_demo(tmp_path, "--backends", "planted:make_unstable", "planted:make_forgetful")
    assert result.returncode == 1, result.stdout + result.stderr
    assert "planted:make_unstable: stream: batch 1 is the first of" in result.stdout
    assert "planted:make_unstable: weights:" in result.stdout
    assert "planted:make_forgetful: stream: batch" in result.stdout
    assert "2 runs, 6 kills, 2 runs that differ" in result.stdout
    (kept,) = (tmp_path / "out").glob("runs-*")
    assert len(list(kept.rglob("attempt-*.jsonl"))) == 10


def test_a_process_that_fails_by_itself_stops_the_demo(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(dedent(PLANTED))
    result = run_demo(tmp_path, "--backends", "planted:make_failing", "list")
    assert result.returncode == 1
    assert "ProcessError: the training process 0 with planted:make_failing failed with status 1" in result.stderr
    assert "the disk is on fire" in result.stderr
    assert processes_in(tmp_path) == []
