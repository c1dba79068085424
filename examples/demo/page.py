"""The page of evidence: which faults every source survived, in Markdown, without dates and paths."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from resumable.chaos.plan import FAULTS

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
_NOTHING = "–"  # noqa: RUF001  # a dash, which is none of the figures


def write_page(path: Path, rows: Sequence[Row], faults: Sequence[str], points: int) -> None:
    """Put the tables between the two marks of a page, or at its end if it has no marks."""
    text = path.read_text() if path.exists() else ""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    path.write_text(f"{before}{BEGIN}\n\n{make_tables(rows, faults, points)}\n\n{END}{after or chr(10)}")


def make_tables(rows: Sequence[Row], faults: Sequence[str], points: int) -> str:
    """Create the tables of a run of the matrix."""
    parts = [
        _summary(rows, points),
        "### Each kind of fault against each source",
        "Number of cases; in bold the number of cases with a broken promise. A dash: it cannot happen, see below.",
        _table(["fault", *(row.name for row in rows)], _grid(rows, faults)),
        "### Each source",
        _table(["source", "", "cases", "faults fired", "launches", "steps retrained", "violations"], _totals(rows)),
        *_broken(rows),
        "### What cannot happen",
        "\n".join(_impossible(rows, faults)) or "Every kind of fault happened to every source.",
    ]
    return "\n\n".join(parts)


def _summary(rows: Sequence[Row], points: int) -> str:
    outcomes = [outcome for row in rows for outcome in row.outcomes]
    fired, starts = (sum(getattr(outcome, name) for outcome in outcomes) for name in ("fired", "starts"))
    broken = sum(not outcome.ok for outcome in outcomes) + sum(row.report is None for row in rows)
    result = f"a promise was broken in {broken} of them" if broken else "every promise was kept in all of them"
    return (
        f"{len(rows)} sources, {len(outcomes)} cases with {fired} faults that fired and {starts} launches of a "
        f"training program; {result}. Each kind of fault happens at "
        f"{points} failpoint{'s' * (points != 1)} of each run.\n\n"
        f"Python {platform.python_version()} on {platform.system()}; {', '.join(_versions())}."
    )


def _versions() -> Iterator[str]:
    for name in _LIBRARIES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue


def _grid(rows: Sequence[Row], faults: Sequence[str]) -> Iterator[list[str]]:
    for kind in faults:
        yield [f"`{kind}`", *(_cell(row, kind) for row in rows)]


def _cell(row: Row, kind: str) -> str:
    if row.report is None:
        return "**failed**"
    outcomes = row.of(kind)
    broken = sum(not outcome.ok for outcome in outcomes)
    return _NOTHING if kind in row.impossible else f"{len(outcomes)}" + f", **{broken}**" * bool(broken)


def _totals(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        yield [f"`{row.name}`", row.label, *_sums([row])]
    yield ["all", "", *_sums(rows)]


def _sums(rows: Sequence[Row]) -> list[str]:
    outcomes = [outcome for row in rows for outcome in row.outcomes]
    planned = sum(len(outcome.case.faults) for outcome in outcomes)
    fired = sum(outcome.fired for outcome in outcomes)
    starts, retrained = sum(outcome.starts for outcome in outcomes), sum(outcome.retrained for outcome in outcomes)
    violations = sum(len(outcome.violations) for outcome in outcomes)
    return [f"{len(outcomes)}", f"{fired} of {planned}", f"{starts}", f"{retrained}", f"{violations}"]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def _broken(rows: Sequence[Row]) -> Iterator[str]:
    lines = [f"- `{row.name}` could not be tested" for row in rows if row.report is None]
    lines += [
        f"- `{row.name}`, {outcome.case}: {', '.join(outcome.violations)}"
        for row in rows
        for outcome in row.outcomes
        if not outcome.ok
    ]
    if lines:
        yield "### Broken promises"
        yield "\n".join(lines)


def _impossible(rows: Sequence[Row], faults: Sequence[str]) -> Iterator[str]:
    for kind in faults:
        reasons: dict[str, list[str]] = {}
        for row in rows:
            if kind in row.impossible:
                reasons.setdefault(row.impossible[kind], []).append(f"`{row.name}`")
        for reason, names in reasons.items():
            yield f"- `{kind}` ({FAULTS[kind].meaning}) with {', '.join(names)}: {reason}."
