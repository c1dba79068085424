"""Every example runs by itself, from any directory, and without a warning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
OWN = {"ray_train": "ray"}  # what is run by the interpreter of an environment of its own, in tests of its own
WARNINGS = "error,ignore:'set_vital' is deprecated:UserWarning"  # torchdata says it when imported


def name(example: Path) -> str:
    return example.stem


def marked(example: Path) -> object:
    """Leave out what takes a minute, as torchrun starts four times."""
    return pytest.param(example, marks=[pytest.mark.long] if example.stem == "chaos_ranks" else [])


@pytest.mark.slow
@pytest.mark.parametrize("example", [marked(one) for one in EXAMPLES if one.stem not in OWN], ids=lambda one: one.stem)
def test_an_example_runs_and_says_what_it_shows(example: Path, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in {"RANK", "WORLD_SIZE"}}
    child = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        env={**environment, "PYTHONWARNINGS": WARNINGS},
        capture_output=True,
        text=True,
        check=False,
        timeout=590,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    assert child.stdout
    assert not child.stderr
    assert not list(tmp_path.iterdir()), "it left files behind"


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_an_example_is_short(example: Path) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) < 60


def test_there_are_examples() -> None:
    assert EXAMPLES
