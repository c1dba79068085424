"""A kill at every failpoint of a run, one after the other, until a run ends by itself: nothing is left to chance."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import resumable

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "preload", "least"),
    [
        ("small_loop.py", ["numpy"], 30),
        ("hand_loop.py", ["torch", "torch._dynamo"], 80),
        ("lightning_loop.py", ["torch", "torch._dynamo", "pytorch_lightning"], 50),
    ],
)
def test_a_kill_at_every_point_breaks_no_promise(script: str, preload: list[str], least: int) -> None:
    words = [sys.executable, str(SCRIPTS / script)]
    found = resumable.chaos.run(words, faults=["kill"], points="all", jobs=2, preload=preload, patience=600.0)
    assert found.ok, found.timeline()
    assert len(found.outcomes) >= least
    assert all(outcome.fired == 1 for outcome in found.outcomes)
    assert [leg.fault.number for outcome in found.outcomes for leg in outcome.case.legs if leg.fault] == list(
        range(1, len(found.baseline.ranks[0].points) + 1)
    )
