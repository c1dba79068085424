"""How long a launch may be silent before it is killed: as slow as a busy machine makes it, not forever."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import resumable
from resumable.chaos.launch.runner import Command, run_case
from resumable.chaos.plan import Case, Launch

SMALL = [sys.executable, str(Path(__file__).parent / "scripts" / "small_loop.py")]
SLOW = (sys.executable, "-c", "import time; time.sleep(2)")


@pytest.mark.parametrize(
    ("patience", "silence", "killed"),
    [
        (0.05, 30.0, ""),  # the baseline run was as slow, or slower
        (0.05, 0.01, "it made no progress for 0 s"),
        (30.0, 0.01, ""),
        (30.0, None, ""),  # it is a baseline run
        (0.05, None, "it made no progress for 1 s"),
    ],
)
def test_a_launch_may_be_silent(patience: float, silence: float | None, killed: str, tmp_path: Path) -> None:
    """For twenty times as long as the baseline run, and that for twenty times the patience."""
    command = Command(SLOW, patience=patience, silence=silence)
    (attempt,) = run_case(command, Case((Launch(),)), tmp_path / "case")
    assert attempt.killed == killed
    assert killed or attempt.silence > 1  # it is measured ten times per second


@pytest.mark.slow
def test_the_baseline_run_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its longest silence is kept for a replay.

    The output of the chaos run goes to a file in the project, whose copy in each case has a different length.
    """
    monkeypatch.chdir(tmp_path)
    output = Path("out.txt")
    output.touch()

    def tell(text: str) -> None:
        with output.open("a") as file:
            file.write(f"{text}\n")

    report = resumable.chaos.run(SMALL, points=2, preload="numpy", tell=tell)
    assert output.read_text()
    assert report.ok, str(report)
    assert report.baseline.silence > 0
    assert json.loads(Path("runs/chaos/campaign.json").read_text())["silence"] == report.baseline.silence
