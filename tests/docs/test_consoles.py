"""Commands on the pages print what the pages say: each `console` block runs, and prints every line that it quotes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from test_docs import PAGES, ROOT, blocks, relative

TIME = re.compile(r"\d+(\.\d+)? (s|min)\b")
FAILS = re.compile(r"^FAILED|^Different: ", re.MULTILINE)  # printed before the exit status 1
# A script that makes what the commands of a page are about.
BEFORE = {
    "docs/debug/inspect.md": """
import torch
from torch.utils.data import DataLoader, TensorDataset

import resumable

torch.manual_seed(0)
loader = resumable.wrap(DataLoader(TensorDataset(torch.arange(40)), 4, shuffle=True), seed=1, name="train")
model = torch.nn.Linear(3, 4)
optimizer = torch.optim.Adam(model.parameters())
store = resumable.CheckpointStore("runs/digits")
for _ in loader.steps(6):
    optimizer.zero_grad()
    (model(torch.ones(4, 3)) * loader.global_step / 4).sum().backward()
    optimizer.step()
    if loader.global_step in {3, 6}:
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": loader.state_dict()}
        content |= {"bf": torch.zeros(3, dtype=torch.bfloat16), "rng": torch.get_rng_state()}
        store.save(loader.global_step, content)
"""
}


class Session(NamedTuple):
    """A command with the output that its page quotes.

    Attributes:
        page: relative to the repository.
        line: of the command in the page.
        command: without the prompt.
        quoted: the lines of its output; "..." for any lines.
        files: contents of the files that the page has before the command, by their names.
    """

    page: str
    line: int
    command: str
    quoted: list[str]
    files: dict[str, str]


def sessions() -> list[Session]:
    found = []
    for page in PAGES:
        files: dict[str, str] = {}
        for block in blocks(page):
            if block.title is not None:
                files[block.title] = f"{block.code}\n"
            if block.language == "console":
                command, *quoted = block.code.split("\n")
                assert command.startswith("$ "), f"{relative(page)}:{block.line} has no command"
                found.append(Session(relative(page), block.line, command[2:], quoted, dict(files)))
    return found


def cases() -> list[object]:
    """Return all sessions, those of chaos runs but the first one for `make test-long`: they take a minute each."""
    chaos = [session for session in sessions() if "chaos run" in session.command]
    return [
        pytest.param(one, id=f"{one.page}:{one.line}", marks=[pytest.mark.long] * (one in chaos[1:]))
        for one in sessions()
    ]


NARROW = {"docs/debug/chaos.md"}  # lines of a phone's width


def run(folder: Path, *command: str, columns: int = 80) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    added = {"PATH": paths, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": str(columns)}
    return subprocess.run(command, cwd=folder, env={**os.environ, **added}, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.every_cell
@pytest.mark.parametrize("session", cases())
def test_a_command_prints_what_the_page_says(session: Session, tmp_path: Path) -> None:
    for name, code in session.files.items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    if session.page in BEFORE:
        before = run(tmp_path, sys.executable, "-c", BEFORE[session.page])
        assert before.returncode == 0, before.stderr
    child = run(tmp_path, *shlex.split(session.command), columns=60 if session.page in NARROW else 80)
    printed = [TIME.sub("SOME TIME", line.rstrip()) for line in (child.stderr + child.stdout).split("\n")]
    wrong = [
        line for line in session.quoted if line.strip() != "..." and TIME.sub("SOME TIME", line.rstrip()) not in printed
    ]
    assert not wrong, "\n".join(["Not printed:", *wrong, "Printed:", child.stderr, child.stdout])
    assert child.returncode == bool(FAILS.search(child.stdout)), child.stderr


def test_there_are_commands() -> None:
    found = sessions()
    assert sum(session.command.startswith("resumable chaos run ") for session in found) == 4
    assert {"check", "inspect", "diff", "samples"} <= {session.command.split()[1] for session in found}
    assert set(BEFORE) <= {session.page for session in found}
