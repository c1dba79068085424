"""Tables, on the terminal and in Markdown."""

from __future__ import annotations

import platform
import re
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from os import cpu_count
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as RichTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["Table", "show", "write"]

BEGIN = "<!-- begin: written by python -m benchmarks --markdown -->"
END = "<!-- end: written by python -m benchmarks --markdown -->"
_SUITE = re.compile(r"<!-- suite: (\S+) -->")
_WIDTH = 140  # if the output is not a terminal
_LIBRARIES = (
    "numpy", "torch", "pytorch-lightning", "torchdata", "grain", "nvidia-dali-cuda120", "ffcv", "tensorflow-cpu",
    "tensorflow-datasets", "datasets", "webdataset", "mosaicml-streaming", "litdata",
    "megatron-core", "pyarrow",
)  # fmt: skip


@dataclass(slots=True)
class Table:
    """A table of text.

    Args:
        title: what is compared.
        columns: their heads.
        rows: cells as text, as many as columns.
        note: explains how to read it.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    note: str = ""


def show(table: Table) -> None:
    """Print a table."""
    printed = RichTable(title=table.title, caption=table.note or None, title_justify="left", caption_justify="left")
    for column in table.columns:
        printed.add_column(column, justify="left" if column == table.columns[0] else "right", overflow="fold")
    for row in table.rows:
        printed.add_row(*(cell.replace("**no**", "[bold red]no[/]") for cell in row))
    Console(width=_WIDTH if not sys.stdout.isatty() else None).print(printed)


def write(path: Path, measured: Mapping[str, list[Table]], order: Sequence[str]) -> None:
    """Put tables between the two marks of a Markdown file, or at its end if it has no marks.

    Args:
        path: of the file.
        measured: tables by suite; tables of other suites are not modified.
        order: all suites; tables of unknown suites are removed.

    Raises:
        ValueError: the file has results of no suite, and not all suites were measured.
    """
    text = path.read_text() if path.exists() else ""
    before, _, rest = text.partition(BEGIN)
    body, _, after = rest.partition(END)
    parts = _SUITE.split(body)
    if parts[0].strip() and not set(order) <= set(measured):
        raise ValueError(f"{path} has results that belong to no suite and would be lost: measure all suites.")
    sections = dict(zip(parts[1::2], map(str.strip, parts[2::2]), strict=True))
    sections |= {suite: "\n\n".join([*map(_markdown, tables), _surroundings()]) for suite, tables in measured.items()}
    kept = [f"<!-- suite: {suite} -->\n\n{sections[suite]}" for suite in order if suite in sections]
    path.write_text("\n\n".join([f"{before}{BEGIN}", *kept, f"{END}{after or chr(10)}"]))


def _markdown(table: Table) -> str:
    lines = [f"### {table.title}", ""]
    lines += ["| " + " | ".join(row) + " |" for row in (table.columns, _rule(table), *table.rows)]
    return "\n".join([*lines, "", table.note] if table.note else lines)


def _rule(table: Table) -> tuple[str, ...]:
    return ("---", *("---:" for _ in table.columns[1:]))


def _surroundings() -> str:
    libraries = ", ".join(f"{name} {found}" for name in _LIBRARIES if (found := _version(name)))
    system = (
        f"{platform.system()} on {platform.machine()}, {cpu_count()} processors, Python {platform.python_version()}"
    )
    return f"Measured on {time.strftime('%Y-%m-%d')}: {system}, {libraries}."


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
