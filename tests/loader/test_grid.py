"""Sources of every kind, saved at every step and at each epoch's end, and resumed in a fresh process.

That process has a different hash seed, and reads at least three more epochs. Its batches are exact, or the source is
rejected, or a warning shows its name. Saving does not change the run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import grid_run
import pytest
from every_source import write_files
from grid_rows import GROUPS, ROW_OF

from resumable.loader import registry

SCRIPT = Path(grid_run.__file__)
PYTHON = {"ray": str(Path(sys.executable).parents[1] / "ray/bin/python")}
OFTEN = ("python", "past", "dali")  # `make test` runs them, too


def run(group: str, folder: Path, phase: str, hash_seed: int) -> Any:
    child = subprocess.run(
        [PYTHON.get(group, sys.executable), str(SCRIPT), group, str(folder), phase],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


def test_every_name_of_the_registry_has_a_row() -> None:
    assert set(ROW_OF) == registry._adapters.keys() | registry._parameters.keys() | registry._datasets.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    "group", [pytest.param(one, marks=pytest.mark.every_cell if one in OFTEN else pytest.mark.long) for one in GROUPS]
)
def test_cut_anywhere_nothing_is_silently_different(group: str, tmp_path: Path) -> None:
    write_files(tmp_path)
    wrong = {phase: run(group, tmp_path, phase, seed) for seed, phase in enumerate(("save", "resume"), start=1)}
    assert wrong == {"save": {}, "resume": {}}
