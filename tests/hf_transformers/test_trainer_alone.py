"""What needs transformers in its own process: tests, the example and the page, run by the environment on top."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ON_TOP = Path(sys.prefix) / "transformers/bin/python"
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train.py", "tune.py"])
def test_the_code_of_the_page_runs(name: str, tmp_path: Path) -> None:
    page = (ROOT / "docs/frameworks/transformers.md").read_text(encoding="utf-8")
    (code,) = re.findall(rf'```python title="{name}"\n(.*?)```', page, re.DOTALL)
    (tmp_path / name).write_text(code, encoding="utf-8")
    run(tmp_path / name, tmp_path, *TRL.get(name, []))


def run(script: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(ON_TOP), "-W", "error", *options, str(script)]
    child = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert child.returncode == 0, child.stdout + child.stderr
    return child
