"""`resumable chaos` and `resumable check` on programs with a `StatefulDataLoader`: a right one, and planted bugs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import resumable
from resumable._selfcheck.program import check_program

pytestmark = pytest.mark.slow

LOOP = [sys.executable, str(Path(__file__).with_name("chaos_loop.py"))]


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("bug", ["", "loader not loaded", "optimizer not restored"])
def test_chaos_reports_the_bug(bug: str) -> None:
    report = resumable.chaos.run([*LOOP, "--bug", bug], faults=["kill"], points=2, seed=1, preload=["torch"])
    assert report.ok is (not bug), report.timeline()
    causes = {outcome.diagnosis.cause for outcome in report.failed}
    assert causes == ({bug} if bug else set())


@pytest.mark.parametrize("bug", ["", "unseeded"])
def test_check_reports_the_bug(bug: str) -> None:
    report = check_program([*LOOP, "--bug", bug], 20.0, lambda _: None, print)
    assert report.ok is (not bug), str(report)
    causes = [trial.cause for one in report.loaders for trial in one.trials if trial.kept is False]
    assert all("default_rng" in cause for cause in causes), causes
    assert bool(causes) is bool(bug)
