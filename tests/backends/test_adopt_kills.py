"""A job of torchdata alone is killed, adopted by a new process, killed again, and resumed: one whole run's batches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from adopted_run import EPOCHS, make


@pytest.mark.slow
def test_a_killed_job_is_adopted_and_survives_another_kill(tmp_path: Path) -> None:
    loader = make()
    whole = [batch.tolist() for _ in range(EPOCHS) for batch in loader]
    for program, last in (("torchdata", 9), ("adopted", 14), ("adopted", 0)):
        command = [sys.executable, str(Path(__file__).with_name("adopted_run.py")), program, str(tmp_path), str(last)]
        child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert child.returncode == (-9 if last else 0), child.stderr
        assert ("Adopted at epoch 1 after 3 batches" in child.stdout) == (last == 14)
    lines = (tmp_path / "batches").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == whole
