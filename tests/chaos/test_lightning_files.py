"""Damaged checkpoint files of the Trainer: what happens with Lightning's own, and with those of CheckedCheckpointIO."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import resumable

SCRIPT = Path(__file__).parent / "scripts" / "lightning_loop.py"
PRELOAD = ["torch", "torch._dynamo", "pytorch_lightning"]


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*options: str, faults: list[str]) -> resumable.chaos.Report:
    words = [sys.executable, str(SCRIPT), *options]
    return resumable.chaos.run(words, faults=faults, points=1, jobs=2, preload=PRELOAD, patience=600.0)


@pytest.mark.slow
@pytest.mark.long
def test_lightning_alone_and_a_cut_file() -> None:
    """Lightning alone does not survive a file that has lost its end.

    Of a flipped bit it says nothing at all: see the tests of CheckedCheckpointIO.
    """
    found = run(faults=["truncate"])
    assert [next(iter(outcome.violations)) for outcome in found.failed] == ["comes to its end"]
    (files,) = [outcome.files for outcome in found.outcomes]
    assert files
    assert all(files.values())


@pytest.mark.slow
def test_with_checked_files_it_survives_whatever_happens_to_them() -> None:
    faults = ["truncate", "flip", "stale", "torn-write", "eio", "lost-fsync"]
    found = run("--checked", faults=faults)
    assert found.ok, found.timeline()
    assert sum(outcome.fired for outcome in found.outcomes) == len(faults)
    assert found.impossible == {}
    assert all(outcome.compared and all(outcome.files.values()) for outcome in found.outcomes)
