"""Runs a chaos campaign for each source: its training program, as a command, against all kinds of faults."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from resumable.chaos import run
from resumable.chaos.report.text import name_kind
from resumable.errors import ResumableError

from .catalogue import find_source
from .program import make_data

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from resumable.chaos import Outcome, Report

__all__ = ["Row", "Settings", "run_matrix"]

_PATIENCE = 300.0  # seconds: on a busy machine, importing a framework may take a minute
_GRACE = 30.0  # seconds
_DIGESTS = "*/sealed.json"  # of files whose contents are compared; equal values may be pickled differently


@dataclass(frozen=True)
class Row:
    """The result for one source.

    Args:
        name: of the source.
        label: of the source, for people.
        report: of its campaign; None if there was none.
        error: why there was none.
        impossible: kinds of faults that cannot happen with it, and why.
        seconds: duration.
    """

    name: str
    label: str
    report: Report | None = None
    error: str = ""
    impossible: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether there were cases, and every promise was kept in all of them."""
        return self.report is not None and self.report.ok

    @property
    def outcomes(self) -> Sequence[Outcome]:
        """The cases."""
        return self.report.outcomes if self.report else ()

    def of(self, kind: str) -> list[Outcome]:
        """Return the cases of a kind of fault."""
        return [outcome for outcome in self.outcomes if name_kind(outcome.case) == kind]


class Settings(NamedTuple):
    """How each source is tested.

    Args:
        faults: kinds of faults.
        points: failpoints per kind.
        jobs: cases at the same time.
        directory: for the data, and for one directory per campaign.
        fresh: launch every process directly, and fork none from one that has imported the slow modules.
    """

    faults: Sequence[str]
    points: int
    jobs: int
    directory: Path
    fresh: bool = False


def run_matrix(sources: Sequence[str], settings: Settings, tell: Callable[[str], None]) -> list[Row]:
    """Run the campaigns, one after another.

    Args:
        sources: names, as in the catalogue.
        settings: of all of them.
        tell: called with progress messages.
    """
    settings.directory.mkdir(parents=True, exist_ok=True)
    data = make_data(settings.directory / "digits.npz").absolute()
    rows = []
    for name in sources:
        tell(f"{name}: {find_source(name).label}")
        rows.append(_run_row(name, data, settings, tell))
        tell(_describe(rows[-1]))
    return rows


def _run_row(name: str, data: Path, settings: Settings, tell: Callable[[str], None]) -> Row:
    source, began = find_source(name), time.monotonic()
    words = [sys.executable, "-m", f"{__package__}.program", name, "--directory={dir}", f"--data={data}"]
    try:
        report = run(
            words,
            faults=settings.faults,
            points=settings.points,
            jobs=settings.jobs,
            directory=settings.directory / name.replace(":", "-"),
            patience=_PATIENCE,
            grace=_GRACE,
            preload=() if settings.fresh else source.slow,
            ignore=_DIGESTS,
            tell=tell,
        )
    except ResumableError as error:
        return Row(name, source.label, error=str(error), seconds=time.monotonic() - began)
    return Row(name, source.label, report, impossible=report.impossible, seconds=time.monotonic() - began)


def _describe(row: Row) -> str:
    return str(row.report) if row.report else f"{row.name} could not be tested: {row.error}"
