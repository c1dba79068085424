"""The README is true: its loop resumes where it says, its table is what loaders do, its picture is of a real run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from scripts_forked import WARNINGS
from test_docs import README, ROOT, blocks, script, slugs

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

import draw_kills

from benchmarks.compare import page

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
    """Run the README's loop in a separate process; return the lines that it printed."""
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
def test_loop_prints_its_position_and_ends_alike(tmp_path: Path) -> None:
    """The loop prints where it resumes, and ends with the baseline's weights and prints the same sum."""
    killed = 2 * STEPS_PER_EPOCH + 15  # the last checkpoint is the one of epoch 2, step 10, as the text has it
    epochs = [f"epoch {number}" for number in range(20)]
    assert train(tmp_path / "killed", killed) == epochs[:3]
    resumed, *rest = train(tmp_path / "killed")
    assert resumed == "resumed at epoch 2, step 10"
    assert rest[:18] == epochs[2:]
    weights = rest[18:]
    assert f"prints `{resumed}`" in TEXT
    assert weights[0].startswith("sum of the weights: ")
    assert train(tmp_path / "baseline") == [*epochs, *weights]


def test_the_change_is_two_lines_of_the_loop() -> None:
    change = next(block for block in blocks(README) if block.language == "diff")
    before, after = change.code.splitlines()
    assert (before[:2], after[:2]) == ("- ", "+ ")
    assert after[2:] in script(README).splitlines()
    assert after[2:] == f"loader = resumable.wrap({before.removeprefix('- loader = ')}, seed=0)"


def test_the_change_the_installation_and_the_loop_come_first() -> None:
    change, install, loop = blocks(README)[:3]
    assert (change.language, install.language, loop.language) == ("diff", "bash", "python")
    assert loop.line + loop.code.count("\n") < 60
    assert len(TEXT.splitlines()) <= 140


@pytest.mark.slow
@pytest.mark.every_cell
@pytest.mark.parametrize("name", page.README_PEERS)
def test_the_table_is_what_the_loaders_do(name: str, tmp_path: Path) -> None:
    rows = [word for row in page.README_ROWS.values() for word in ("--rows", row)]
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.compare", "--only", name, "--workers", "2"]
    subprocess.run([*command, *rows, "--results", tmp_path / "results.json"], cwd=ROOT, check=True)
    found, known = (
        json.loads(path.read_text(encoding="utf-8"))["peers"][name]["cells"]["2"]
        for path in (tmp_path / "results.json", page.RESULTS)
    )
    assert page.readme_cells(found) == page.readme_cells(known), "run `make compare`"


def test_the_picture_shows_a_run_that_was_killed_three_times() -> None:
    data = json.loads(draw_kills.DATA.read_text(encoding="utf-8"))
    assert draw_kills.PICTURE.read_text(encoding="utf-8") == draw_kills.picture(data), "run `python docs/draw_kills.py`"
    runs = data["processes"]
    assert [run["killed"] for run in runs] == [True, True, True, False]
    assert data["identical"]
    for run, following in pairwise(runs):
        assert following["resumed"] == max(run["saves"])
        assert following["resumed"] <= run["last"]


def urls() -> dict[str, str]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return dict(tomllib.loads(text)["project"]["urls"])


def targets() -> list[str]:
    """Return what the README links to, in Markdown and in HTML."""
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    return ["".join(groups) for groups in re.findall(r"\]\(([^)]+)\)|(?:src|href)=[\"']([^\"']+)", prose)]


def test_every_link_is_relative_as_nothing_is_published_yet() -> None:
    assert len(targets()) >= 20
    assert [target for target in targets() if "://" in target or target.startswith("/")] == []


@pytest.mark.parametrize("target", sorted(set(targets())))
def test_a_link_leads_to_a_file_of_the_repository(target: str) -> None:
    name, _, anchor = target.partition("#")
    assert (ROOT / name).is_file()
    assert not anchor or anchor in slugs(ROOT / name)


def test_the_site_has_the_addresses_of_the_project() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert f"\nsite_url: {urls()['Documentation']}\n" in settings
    assert f"\nrepo_url: {urls()['Repository']}\n" in settings
