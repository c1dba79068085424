"""The page of the architecture is up to date: its picture, its table of rooms, and the paths that it mentions."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

import draw_rooms

ROOT = Path(__file__).parents[2]
PACKAGE, TESTS = ROOT / "resumable", ROOT / "tests"
PAGE = draw_rooms.PAGE.read_text(encoding="utf-8")
WALKED = re.compile(r"^ *(\S+\.py): (?:\w+\.)?(\w+): ", re.MULTILINE)


def test_the_picture_and_the_table_are_those_of_the_rooms() -> None:
    stale = "run `python docs/draw_rooms.py`"
    assert draw_rooms.PICTURE.read_text(encoding="utf-8") == draw_rooms.picture(), stale
    assert [found.strip() for found in draw_rooms.TABLE.findall(PAGE)] == [draw_rooms.table()], stale


def test_every_step_of_a_walk_is_in_its_file() -> None:
    steps = WALKED.findall(PAGE)
    assert len(steps) > 30
    assert [step for step in steps if f"def {step[1]}(" not in (PACKAGE / step[0]).read_text(encoding="utf-8")] == []


def test_the_paths_and_bugs_of_the_page_are_there() -> None:
    tests = {path.name for path in TESTS.rglob("*.py")}
    words = set(re.findall(r"`([^`\n]+)`", PAGE))
    paths = {word for word in words if "/" in word and " " not in word and not word.startswith("resumable/")}
    files = {word for word in words if re.fullmatch(r"\w+\.py", word)}
    assert len(paths) > 50
    assert sorted(path for path in paths if not ((PACKAGE / path).exists() or (ROOT / path).exists())) == []
    assert sorted(name for name in files if name not in tests and not (PACKAGE / name).exists()) == []
    code = ast.parse((TESTS / "chaos/mutations/planted.py").read_text(encoding="utf-8"))
    bugs = {node.name for node in ast.walk(code) if isinstance(node, ast.FunctionDef)}
    rows = [
        line.split("|")[3] for line in PAGE.split("## Where do I change what")[1].split("\n") if line.startswith("| ")
    ]
    named = {word for cell in rows for word in re.findall(r"`([a-z]\w*)`", cell)}
    assert "old_ranks" in named
    assert sorted(named - bugs) == []
