"""The page of evidence: which faults every source survived, in Markdown, without dates and paths."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from .matrix import Row

__all__ = ["make_tables", "write_page"]

BEGIN = "<!-- begin: written by make chaos -->"
END = "<!-- end: written by make chaos -->"
_LIBRARIES = (
    "numpy",
    "torch",
    "pytorch-lightning",
    "nvidia-dali-cuda120",
    "ffcv",
    "tensorflow-datasets",
    "tensorflow",
    "tensorflow-cpu",
    "datasets",
    "accelerate",
    "transformers",
)


def write_page(path: Path, rows: Sequence[Row], faults: Sequence[str], points: int) -> None:
    """Put the tables between the two marks of a page, or at its end if it has no marks."""
    text = path.read_text() if path.exists() else ""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    path.write_text(f"{before}{BEGIN}\n\n{make_tables(rows, faults, points)}\n\n{END}{after or chr(10)}")


def make_tables(rows: Sequence[Row], faults: Sequence[str], points: int) -> str:
    """Return the result of a run of the matrix: a sentence if every case passed, and tables of the exceptions."""
    parts = [_summary(rows, points), *_failed(rows), *_impossible(rows, faults), _sources(rows)]
    return "\n\n".join(parts)


def _summary(rows: Sequence[Row], points: int) -> str:
    outcomes = [outcome for row in rows for outcome in row.outcomes]
    fired, launches, retrained = (
        sum(getattr(outcome, name) for outcome in outcomes) for name in ("fired", "starts", "retrained")
    )
    planned = sum(len(outcome.case.faults) for outcome in outcomes)
    passed = sum(outcome.ok for outcome in outcomes)
    return (
        f"**{passed} of {len(outcomes)} cases passed**, with {len(rows)} sources and {points} "
        f"case{'s' * (points != 1)} per source and kind of fault. {fired} of {planned} faults fired, "
        f"in {launches} launches. {retrained} steps were trained again after a crash.\n\n"
        f"Python {platform.python_version()} on {platform.system()}; {', '.join(_versions())}."
    )


def _versions() -> Iterator[str]:
    for name in _LIBRARIES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def _failed(rows: Sequence[Row]) -> Iterator[str]:
    lines = [[f"`{row.name}`", "all: it could not be tested", "unknown"] for row in rows if row.report is None]
    lines += [
        [f"`{row.name}`", str(outcome.case), ", ".join(outcome.violations)]
        for row in rows
        for outcome in row.outcomes
        if not outcome.ok
    ]
    if lines:
        yield "### Failed cases"
        yield _table(["source", "case", "broken promises"], lines)


def _impossible(rows: Sequence[Row], faults: Sequence[str]) -> Iterator[str]:
    reasons: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for kind in faults:
        skipped: dict[str, list[str]] = {}
        for row in rows:
            if kind in row.impossible:
                skipped.setdefault(row.impossible[kind], []).append(f"`{row.name}`")
        for reason, names in skipped.items():
            reasons.setdefault((reason, tuple(names)), []).append(f"`{kind}`")
    if reasons:
        yield "### Faults that cannot happen"
        body = [[", ".join(kinds), ", ".join(names), reason] for (reason, names), kinds in reasons.items()]
        yield _table(["fault", "sources", "reason"], body)


def _sources(rows: Sequence[Row]) -> str:
    return "### Sources\n\n" + _table(["source", "description"], [[f"`{row.name}`", row.label] for row in rows])
