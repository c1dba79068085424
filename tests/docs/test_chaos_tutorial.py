"""What the tutorial on chaos shows is what happens: its commands are run, and every line that it quotes is printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the reader of pages stands beside this file

from test_docs import ROOT, Block, blocks

PAGE = ROOT / "docs/tutorial/break-your-training.md"
TIME = re.compile(r"\d+(\.\d+)? (s|min)\b")


def sessions() -> list[tuple[dict[str, str], Block]]:
    """Return the blocks with a command and its output, each with the files as they are then."""
    files: dict[str, str] = {}
    found = []
    for block in blocks(PAGE):
        if block.title is not None:
            files[block.title] = block.code + "\n"
        if block.language == "console":
            found.append((dict(files), block))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [pytest.param(number, marks=[pytest.mark.long] * (number > 0)) for number in range(len(sessions()))]
)
def test_a_command_prints_what_the_page_says(number: int, tmp_path: Path) -> None:
    files, block = sessions()[number]
    for name, code in files.items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    command, *quoted = block.code.split("\n")
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    child = subprocess.run(
        shlex.split(command.removeprefix("$ ")),
        cwd=tmp_path,
        env={**os.environ, "PATH": paths, "OMP_NUM_THREADS": "1", "COLUMNS": "60"},
        capture_output=True,
        text=True,
        check=False,
    )
    printed = [TIME.sub("SOME TIME", line) for line in (child.stderr + child.stdout).split("\n")]
    for line in quoted:
        assert line == "..." or TIME.sub("SOME TIME", line) in printed, f"{line}\n\n{child.stderr}{child.stdout}"
    assert child.returncode == ("A promise was broken" in child.stdout)


def test_there_are_commands() -> None:
    commands = [block.code.split("\n")[0] for _, block in sessions()]
    assert len(commands) == 4
    assert all(command.startswith("$ resumable chaos run ") for command in commands)
