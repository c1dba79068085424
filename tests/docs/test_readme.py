"""The README keeps its word: its loop resumes where it says, and its links are absolute and lead somewhere."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest
from scripts_forked import WARNINGS
from test_docs import README, ROOT, blocks, script, slugs

if TYPE_CHECKING:
    from pathlib import Path

TEXT = README.read_text(encoding="utf-8")
STEPS_PER_EPOCH = 20
KILLED = """
import os, runpy, signal, torch

taken, original = 0, torch.optim.SGD.step

def counted(optimizer):
    global taken
    original(optimizer)
    taken += 1
    if taken == int(os.environ["KILL_AFTER"]):
        os.kill(os.getpid(), signal.SIGKILL)

torch.optim.SGD.step = counted
print([parameter.tolist() for parameter in runpy.run_path("train.py")["model"].parameters()])
"""


def train(folder: Path, kill_after: int = 0) -> list[str]:
    """Run the README's loop in a process of its own; return the lines that it printed."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(script(README), encoding="utf-8")
    (folder / "killed.py").write_text(KILLED, encoding="utf-8")
    child = subprocess.run(
        [sys.executable, "-u", "killed.py"],
        cwd=folder,
        env={**os.environ, "KILL_AFTER": str(kill_after), "PYTHONWARNINGS": WARNINGS, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == (-signal.SIGKILL if kill_after else 0), child.stdout + child.stderr
    return child.stdout.splitlines()


@pytest.mark.slow
def test_loop_prints_its_place_and_ends_alike(tmp_path: Path) -> None:
    """The loop prints the place of its resume and ends with the baseline's weights."""
    killed = 2 * STEPS_PER_EPOCH + 15  # the last checkpoint is the one of epoch 2, step 10, as the text has it
    assert train(tmp_path / "killed", killed) == ["starting from scratch"]
    resumed, weights = train(tmp_path / "killed")
    assert resumed == "resumed at epoch 2, step 10"
    assert f"prints `{resumed}`" in TEXT
    assert train(tmp_path / "baseline") == ["starting from scratch", weights]


def test_the_change_is_two_lines_of_the_loop() -> None:
    change = next(block for block in blocks(README) if block.language == "diff")
    before, after = change.code.splitlines()
    assert (before[:2], after[:2]) == ("- ", "+ ")
    assert after[2:] in script(README).splitlines()
    assert after[2:] == f"loader = resumable.wrap({before.removeprefix('- loader = ')}, seed=0)"


def test_one_screen_with_the_change_first() -> None:
    """It is one screen, with the change and the loop at the top."""
    change, loop = blocks(README)[:2]
    assert (change.language, loop.language) == ("diff", "python")
    assert loop.line + loop.code.count("\n") <= 40
    assert len(TEXT.splitlines()) <= 120


def base() -> str:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    return str(urls["Documentation"])


def targets() -> list[str]:
    """Return what the README links to: between parentheses, in definitions of labels, and in HTML."""
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    found = re.findall(r"\]\(([^)]+)\)|^\[[^]]+\]:\s*(\S+)|(?:src|href)=[\"']([^\"']+)", prose, flags=re.MULTILINE)
    return ["".join(groups) for groups in found]


def test_every_link_is_absolute_as_relative_ones_break_on_pypi() -> None:
    assert len(targets()) >= 9
    assert [target for target in targets() if not target.startswith(base())] == []


def test_every_label_has_a_target() -> None:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", TEXT, flags=re.DOTALL)
    defined = set(re.findall(r"^\[([^]]+)\]:", prose, flags=re.MULTILINE))
    assert set(re.findall(r"\]\[([^]]+)\]", prose)) == defined


@pytest.mark.parametrize("target", targets())
def test_a_link_leads_to_a_page_of_the_documentation(target: str) -> None:
    name, _, anchor = target.removeprefix(base()).partition("#")
    page = ROOT / "docs" / re.sub(r"\.html$", ".md", name)
    assert page.is_file()
    assert not anchor or anchor in slugs(page)


def test_the_site_is_built_for_the_same_address() -> None:
    assert f"\nsite_url: {base()}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
