"""The demo's runs over sources that are read by index from files: shards, and a mixture, also with Lightning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SOURCES = {
    "tars": "Tars in blocks, 2 workers",
    "mixture": "mixture of Tars and Parquet",
    "lightning-mixture": "Lightning, mixture of Tars and Parquet",
}


@pytest.mark.slow
def test_killed_runs_are_identical(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "examples.demo", "--kills", "2", "--output", "out", "--backends", *SOURCES]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    result = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    for label in SOURCES.values():
        assert f"{label}: identical to the baseline run after 2 kills" in result.stdout
