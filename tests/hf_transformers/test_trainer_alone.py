"""Tests, examples and the page that need the environment with transformers, each in a separate process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
ON_TOP = Path(sys.prefix) / "transformers/bin/python"
CPU = ["-W", "ignore:'pin_memory':UserWarning"]  # the page's scripts also run on a GPU
IGNORED = ["-W", "ignore::FutureWarning"]  # TRL's own, about transformers
TRL = {"tune.py": IGNORED, "trl_sft": IGNORED}
CASES = Path(__file__).with_name("trainer_cases.py")


@pytest.mark.slow
def test_what_needs_transformers_in_its_own_process() -> None:
    command = [str(ON_TOP), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(CASES)]
    child = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert child.returncode == 0, child.stdout + child.stderr
    assert " passed" in child.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("name", "place"), [("transformers_trainer", "checkpoint-6"), ("trl_sft", "checkpoint-2")])
def test_the_examples_resume(name: str, place: str, tmp_path: Path) -> None:
    child = run(ROOT / "examples" / f"{name}.py", tmp_path, *TRL.get(name, []))
    assert "bit for bit: True" in child.stdout
    assert f"resumes from {place}" in child.stdout
    assert "False" not in child.stdout
    assert not list(tmp_path.iterdir()), "it left files behind"


# Runs a page's script, and again from its first checkpoint alone.
TWICE = """
import itertools, pathlib, runpy, shutil, sys, torch

trainers = []
for _ in range(2):
    trainers.append(runpy.run_path(sys.argv[1])["trainer"])
    for checkpoint in pathlib.Path(sys.argv[2]).glob("checkpoint-*"):
        if checkpoint.name != "checkpoint-1":
            shutil.rmtree(checkpoint)
first, resumed = trainers
assert first.state.global_step == resumed.state.global_step > 2
for one, other in zip(first.model.parameters(), resumed.model.parameters(), strict=True):
    assert torch.equal(one, other)
tokens = [[log["num_tokens"] for log in run.state.log_history if "num_tokens" in log] for run in trainers]
assert tokens[0] == tokens[1]
assert bool(tokens[0]) == (sys.argv[1] == "tune.py")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "folder"), [("train.py", "runs/transformers"), ("tune.py", "tuned")])
def test_the_code_of_the_page_resumes(name: str, folder: str, tmp_path: Path) -> None:
    page = (ROOT / "docs/frameworks/transformers.md").read_text(encoding="utf-8")
    (code,) = re.findall(rf'```python title="{name}"\n(.*?)```', page, re.DOTALL)
    (tmp_path / name).write_text(code, encoding="utf-8")
    (tmp_path / "twice.py").write_text(TWICE, encoding="utf-8")
    run(tmp_path / "twice.py", tmp_path, *CPU, *TRL.get(name, []), arguments=[name, folder])


def run(script: Path, folder: Path, *options: str, arguments: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    command = [str(ON_TOP), "-W", "error", *options, str(script), *arguments]
    child = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    assert child.returncode == 0, child.stdout + child.stderr
    return child
