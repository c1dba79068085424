"""Programs in the shape of public ones get the right verdict at the first try: unchanged, without an option."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from public_programs import PROGRAMS, lay_out

import resumable
from resumable._selfcheck.program import check_program

pytestmark = pytest.mark.slow
long = pytest.mark.long


@pytest.fixture(autouse=True)
def _in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program runs in its folder."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")


def run(name: str, *, bug: bool = False, **options: Any) -> resumable.chaos.Report:
    """Break a program a few times; what each launch imports is imported once."""
    program = lay_out(name, Path.cwd(), bug=bug)
    before = inputs()
    report = resumable.chaos.run(program.words, preload=program.modules, patience=600.0, **options)
    assert inputs() == before
    return report


def inputs() -> dict[str, bytes]:
    """Return all files of the project, which a chaos run may not change."""
    return {
        str(path): path.read_bytes()
        for path in sorted(Path().rglob("*"))
        if path.is_file() and path.parts[0] != "runs" and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_passes(name: str) -> None:
    report = run(name, points=2)
    assert report.status == 0, report.timeline()
    assert any(outcome.resumed for outcome in report.outcomes)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_cause_of_a_bug(name: str) -> None:
    report = run(name, bug=True, points=3)
    assert report.failed, str(report)
    causes = Counter(outcome.diagnosis.cause for outcome in report.failed)
    ((most, _),) = causes.most_common(1)  # a late kill may leave too few steps for all signs
    assert most == PROGRAMS[name].cause, (causes, report.timeline())


@pytest.mark.parametrize("name", PROGRAMS)
def test_its_loader_is_checked(name: str) -> None:
    program = lay_out(name, Path.cwd())
    report = check_program(program.words[:1] + program.words[-3:] if name == "ddp" else program.words, 60, print, print)
    assert report.ok, str(report)


@long
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.timeout(1200)
def test_the_first_try_takes_less_than_four_minutes(name: str) -> None:
    """The command line at its defaults: on a quiet machine, in less than 4 minutes."""
    program = lay_out(name, Path.cwd())
    words = [sys.executable, "-m", "resumable", "chaos", "run", "--", *program.words]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("PASSED: ")
