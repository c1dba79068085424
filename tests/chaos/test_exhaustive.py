"""A kill at every failpoint of a run, one after the other, until a run ends by itself: nothing is left to chance.

Of the runs with torch, `make test` takes a sample of the points, and `make test-long` all.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import resumable

if TYPE_CHECKING:
    from resumable.chaos import Report

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


HAND = "hand_loop.py", ["torch", "torch._dynamo"]
LIGHTNING = "lightning_loop.py", ["torch", "torch._dynamo", "pytorch_lightning"]


def run(script: str, preload: list[str], points: Any) -> Report:
    words = [sys.executable, str(SCRIPTS / script)]
    found = resumable.chaos.run(words, faults=["kill"], points=points, jobs=2, preload=preload, patience=600.0)
    assert found.ok, found.timeline()
    assert all(outcome.fired == 1 for outcome in found.outcomes)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "preload", "least"),
    [
        pytest.param("small_loop.py", ["numpy"], 30, marks=pytest.mark.long),
        pytest.param(*HAND, 80, marks=pytest.mark.long),
        pytest.param(*LIGHTNING, 50, marks=pytest.mark.long),
    ],
)
def test_a_kill_at_every_point_breaks_no_promise(script: str, preload: list[str], least: int) -> None:
    found = run(script, preload, "all")
    assert len(found.outcomes) >= least
    struck = [fault.number for outcome in found.outcomes for fault in outcome.case.faults]
    assert sorted(struck) == list(range(1, len(found.baseline.ranks[0].points) + 1))


@pytest.mark.slow
@pytest.mark.parametrize(("script", "preload"), [HAND, LIGHTNING])
def test_a_kill_at_any_point_breaks_no_promise(script: str, preload: list[str]) -> None:
    found = run(script, preload, 12)  # `make test-long` has all points of both
    assert len(found.outcomes) == 12
