"""The unrelated project `resumable` on PyPI, installed in the same folder: the rest of this package says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import resumable

OURS = Path(resumable.__file__).parent


@pytest.fixture(params=[True, False], ids=["ours on top", "theirs on top"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder with both, of which one has overwritten `__init__.py`."""
    (tmp_path / "resumable").mkdir()
    for path in OURS.iterdir():
        if request.param or path.name != "__init__.py":
            (tmp_path / "resumable" / path.name).symlink_to(path)
    if not request.param:
        (tmp_path / "resumable" / "__init__.py").write_text("class Resumable: pass", encoding="utf-8")
    (tmp_path / "resumable_data-0.1.0.dist-info").mkdir()
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_the_command_line_says_so(folder: Path) -> None:
    alone = run(folder, "-m", "resumable", "doctor")
    assert (alone.returncode, alone.stderr) == (0, "")
    (folder / "resumable-0.1.1.dist-info").mkdir()
    both = run(folder, "-m", "resumable", "doctor")
    assert both.returncode == 1
    for text in (both.stdout, both.stderr):
        assert " ".join(text.split()).count("unrelated project 'resumable' 0.1.1 is installed") == 1
    assert "resumable-data" in both.stdout


@pytest.mark.parametrize("folder", [True], indirect=True)
def test_the_import_says_so(folder: Path) -> None:
    assert run(folder, "-c", "import resumable").stderr == ""
    (folder / "resumable-0.1.1-py3.11.egg-info").touch()
    told = run(folder, "-c", "import resumable").stderr
    assert "<string>:1: PromiseWarning: the unrelated project 'resumable' 0.1.1-py3.11 is installed" in told
