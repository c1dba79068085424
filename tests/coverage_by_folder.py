"""Prints what `coverage json` found, as a table with a row per folder of the package.

python tests/coverage_by_folder.py coverage.json
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

COUNTS = ("covered_lines", "num_statements", "covered_branches", "num_branches")


def folder_of(file: str) -> str:
    """Return the folder that a file is counted in: two levels below the package, as in `resumable/backends/dali`."""
    return "/".join(Path(file).parts[:-1][:3])


def sums(files: Mapping[str, Mapping[str, Mapping[str, int]]]) -> dict[str, list[int]]:
    """Add up the counts of each folder, and of all of them."""
    found: dict[str, list[int]] = defaultdict(lambda: [0] * len(COUNTS))
    for file, measured in sorted(files.items()):
        for folder in (folder_of(file), "all"):
            for place, name in enumerate(COUNTS):
                found[folder][place] += measured["summary"][name]
    found["all"] = found.pop("all")  # the last row
    return dict(found)


def lines(folders: Mapping[str, Iterable[int]]) -> list[str]:
    """Make the table in Markdown."""
    rows = ["| folder | lines | covered | branches | covered |", "| --- | ---: | ---: | ---: | ---: |"]
    for folder, counts in folders.items():
        covered, statements, taken, branches = counts
        rows.append(
            f"| `{folder}` | {statements} | {percent(covered, statements)} | {branches} | {percent(taken, branches)} |"
        )
    return rows


def percent(part: int, whole: int) -> str:
    """Give a share in percent, rounded down: 100 % are all of them."""
    return f"{100 * part // whole} %" if whole else ""


if __name__ == "__main__":
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.stdout.write("\n".join(lines(sums(report["files"]))) + "\n")
