"""How the tests are run: none may hang, redundant ones are left to `make test-long`, coverage is told by folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]
HANGING = """
    import threading
    import time

    def wait_in_a_thread():
        time.sleep(60)

    def test_hangs():
        threading.Thread(target=wait_in_a_thread, daemon=True).start()
        hang_here()

    def hang_here():
        {hang}

    def test_the_next_one():
        pass
"""
# A deadlock in C that keeps the interpreter's lock: a mutex that is taken twice.
IN_C = "import ctypes; c = ctypes.PyDLL(None); mutex = ctypes.create_string_buffer(64); " + 2 * (
    "c.pthread_mutex_lock(mutex); "
)


def run_pytest(folder: Path, hang: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a test that hangs, as this project's configuration has it but for the seconds."""
    (folder / "test_hanging.py").write_text(dedent(HANGING).format(hang=hang), encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), *options],
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_hanging_test_fails_with_stacks(tmp_path: Path) -> None:
    """A test that hangs fails with the stacks of all threads, and the next one runs."""
    result = run_pytest(tmp_path, "time.sleep(60)", "-o", "timeout=3", "test_hanging.py")
    assert "1 failed, 1 passed" in result.stdout, result.stdout + result.stderr
    assert "in hang_here" in result.stdout or "hang_here()" in result.stdout
    assert "wait_in_a_thread" in result.stdout
    assert "Timeout (>3.0s) from pytest-timeout." in result.stdout


@pytest.mark.slow
def test_worker_that_hangs_in_c_is_replaced(tmp_path: Path) -> None:
    """A worker that hangs in C is ended with its stack, and a new one continues."""
    seconds = ("-o", "timeout=2", "-o", "faulthandler_timeout=4")
    result = run_pytest(tmp_path, IN_C, *seconds, "--numprocesses", "1", "test_hanging.py")
    assert "in hang_here" in result.stderr, result.stdout + result.stderr
    assert "crashed while running 'test_hanging.py::test_hangs'" in result.stdout
    assert "1 failed, 1 passed" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ("0, pytest.param(1, marks=pytest.mark.long)", "2 passed"),
        (
            "pytest.param(1, marks=pytest.mark.long)",
            "`make test` runs nothing of test_grid.py::test_cell: leave a sample",
        ),
    ],
)
@pytest.mark.parametrize("xdist", [False, True])
def test_no_test_is_left_to_the_long_ones_alone(cells: str, says: str, xdist: bool, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text(encoding="utf-8"), encoding="utf-8")
    grid = f"import pytest\n\n@pytest.mark.parametrize('cell', [{cells}])\ndef test_cell(cell):\n    pass\n"
    (tmp_path / "test_grid.py").write_text(grid, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    options = ["--numprocesses", "1"] if xdist else []
    result = subprocess.run([*command, *options, str(tmp_path)], capture_output=True, text=True, check=False)
    assert says in result.stdout + result.stderr, result.stdout + result.stderr
    assert (result.returncode == 0) == (says == "2 passed")


def test_the_phases_of_make_are_told_as_they_are_written() -> None:
    """A comma would end the text, and a backquote or a dollar would run what follows."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    told = re.findall(r"\$\(call say,(.*)\)$", text, flags=re.MULTILINE)
    assert len(told) == text.count("$(call say,") > 10
    assert [words for words in told if re.search(r"[,`\"\\$]", re.sub(r"\$\((TORCH|1)\)", "", words))] == []


def make(*arguments: str) -> str:
    """Return what make prints; it may be make that runs these tests."""
    command = [shutil.which("make") or "make", "--no-print-directory", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def test_make_test_tells_each_of_its_phases() -> None:
    said = make("--dry-run", "test")
    phases = re.findall(r"^echo .* s\] (lint|types|docs|tests|done)", said, flags=re.MULTILINE)
    assert phases == ["lint", "types", "docs", "tests", "done"]
    assert "pytest --numprocesses auto" in said
    assert "-m 'not long'" in said


def test_the_help_lists_every_target() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.search(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)
    assert targets is not None
    assert sorted(line.split()[0] for line in make("help").splitlines()) == sorted(targets[1].split())


def test_limits_are_far_and_ordered() -> None:
    """The limits are far above the time of a test and in this order."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    assert 300 <= options["timeout"] < options["faulthandler_timeout"] < 1800


def test_coverage_is_told_by_folder_and_rounded_down(tmp_path: Path) -> None:
    def summary(*counts: int) -> dict[str, dict[str, int]]:
        names = ("covered_lines", "num_statements", "covered_branches", "num_branches")
        return {"summary": dict(zip(names, counts, strict=True))}

    files = {
        "resumable/backends/dali/identity.py": summary(9, 10, 1, 2),
        "resumable/backends/dali/forks.py": summary(990, 990, 2, 2),
        "resumable/backends/sequence.py": summary(5, 5, 0, 0),
        "resumable/errors.py": summary(1, 2, 0, 4),
    }
    (tmp_path / "coverage.json").write_text(json.dumps({"files": files}), encoding="utf-8")
    script = [sys.executable, str(ROOT / "tests/coverage_by_folder.py"), str(tmp_path / "coverage.json")]
    table = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert table.splitlines()[2:] == [
        "| `resumable/backends/dali` | 1000 | 99 % | 4 | 75 % |",
        "| `resumable/backends` | 5 | 100 % | 0 |  |",
        "| `resumable` | 2 | 50 % | 4 | 0 % |",
        "| `all` | 1007 | 99 % | 8 | 37 % |",
    ]
