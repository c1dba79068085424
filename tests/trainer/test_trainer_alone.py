"""The tests of `trainer_cases.py`, run where transformers is: in the environment on top of this one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ON_TOP = Path(sys.prefix) / "transformers/bin/python"
CASES = Path(__file__).with_name("trainer_cases.py")


@pytest.mark.slow
def test_what_needs_transformers_in_its_own_process() -> None:
    command = [ON_TOP, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", CASES]
    child = subprocess.run(command, capture_output=True, text=True, check=False, cwd=CASES.parents[2])
    assert child.returncode == 0, child.stdout + child.stderr
    assert " passed" in child.stdout
