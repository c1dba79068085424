"""The demo's programs with Accelerate and with transformers' Trainer, and what they take for a whole checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from demo.sealed import last_sealed, seal

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).parents[2]
ON_TOP = Path(sys.prefix) / "transformers/bin/python"  # by which `make demo-all` runs
SOURCES = {
    "accelerate": "Accelerate, DataLoader",
    "transformers": "transformers Trainer",
    "hugging-face-stream": "Hugging Face IterableDataset, 2 workers",
}


@pytest.mark.slow
def test_killed_runs_are_identical(tmp_path: Path) -> None:
    """All from the interpreter that has transformers, too."""
    words = [str(ON_TOP), "-m", "examples.demo", "--kills", "2", "--output", "out", "--backends", *SOURCES]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    result = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    for label in SOURCES.values():
        assert f"{label}: identical to the baseline run after 2 kills" in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
def test_the_interpreter_on_top_has_every_source() -> None:
    script = "import demo.catalogue as c; print([name for name, one in c.SOURCES.items() if c.missing_extras(one)])"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "examples")}
    command = [str(ON_TOP), "-c", script]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def checkpoint(root: Path, number: int) -> Path:
    folder = root / f"checkpoint-{number}"
    folder.mkdir(parents=True)
    for name in ("model", "state"):
        (folder / name).write_bytes(f"{name} {number}".encode())
    return folder


def cut(folder: Path) -> None:
    path = folder / "model"
    path.write_bytes(path.read_bytes()[:-1])


def flip(folder: Path) -> None:
    path = folder / "state"
    path.write_bytes(b"S" + path.read_bytes()[1:])


def lose(folder: Path) -> None:
    (folder / "model").unlink()


def add(folder: Path) -> None:
    (folder / "model.part").write_bytes(b"half")


def tear(folder: Path) -> None:
    path = folder / "sealed.json"
    path.write_bytes(path.read_bytes()[:9])


@pytest.mark.parametrize("harm", [cut, flip, lose, add, tear])
def test_broken_seal_is_passed_over(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    """A checkpoint that differs from its seal is passed over."""
    assert last_sealed(tmp_path / "nothing") is None
    folders = [checkpoint(tmp_path, number) for number in (5, 20, 100, 110)]
    assert last_sealed(tmp_path) is None
    for folder in folders[:-1]:
        seal(folder)
    assert last_sealed(tmp_path) == folders[2]
    harm(folders[2])
    assert last_sealed(tmp_path) == folders[1]
