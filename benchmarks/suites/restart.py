"""A complete restart: from the start of the process to the first batch after a state, including imports."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

from benchmarks.ratios import median, ratio
from benchmarks.report import Table
from benchmarks.restarted import MODULES

if TYPE_CHECKING:
    from benchmarks.plan import Plan
    from benchmarks.remote import Pool

__all__ = ["run"]

_COLUMNS = (
    "source",
    "s alone, from its beginning",
    "s resumed",
    "resumed / alone",
    "of that: Python",
    "its imports",
    "import resumable",
    "to the first batch",
)
_NOTE = (
    "From the start of a process to its first batch, medians; alone: the source without this package. The last four "
    "columns are the parts of a resumed run, in seconds; imports by wrap belong to the last one."
)
_NEEDED = {"TFDS": "tensorflow_datasets", "DALI": "nvidia.dali"}


def run(plan: Plan, pool: Pool) -> list[Table]:  # noqa: ARG001  # each run is a separate process
    """Start each source repeatedly, alternating with the source alone."""
    table = Table("A restart as a whole", _COLUMNS, note=_NOTE)
    names = list(MODULES) if plan.every else ["list", "mix"]
    for name in names:
        missing = [module for module in (*MODULES[name], _NEEDED.get(name, "json")) if not _is_there(module)]
        if missing:
            table.rows.append((name, f"not installed: {missing[0]}", *("" for _ in _COLUMNS[2:])))
        else:
            table.rows.append(_row(name, max(plan.rounds // 5, 1)))
    return [table]


def _row(name: str, rounds: int) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as folder:
        _start(name, "save", folder)
        taken: dict[str, list[dict[str, float]]] = {"alone": [], "resume": []}
        for turn in range(-1, rounds):  # the first turn reads the files of all imports
            for how, starts in taken.items():
                if turn < 0 or how == "resume" or name not in {"mix", "TFDS"}:
                    starts.append(_start(name, how if name not in {"mix", "TFDS"} else "resume", folder))
    alone, resumed = (starts[1:] for starts in taken.values())
    ends = [start["first batch"] for start in resumed]
    parts = [[start["interpreter"] for start in resumed]]
    parts += [
        [start[later] - start[earlier] for start in resumed]
        for earlier, later in zip(("interpreter", "imports", "import resumable"), _PARTS, strict=True)
    ]
    others = [start["first batch"] for start in alone]
    return (
        name,
        f"{median(others):.2f}" if others else "ours",
        f"{median(ends):.2f}",
        str(ratio(ends, others)) if others else "",
        *(f"{median(part):.2f}" for part in parts),
    )


_PARTS = ("imports", "import resumable", "first batch")


def _start(name: str, how: str, folder: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.restarted", name, how, folder, repr(time.time())]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    done: dict[str, float] = json.loads(said)
    return done


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
