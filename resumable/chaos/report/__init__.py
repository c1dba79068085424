"""The results of a campaign: an object, a table, a timeline in words, JSON, and a page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from resumable.chaos.report.page import make_page
from resumable.chaos.report.text import make_rows, make_summary, make_table, make_timeline, tell_lines
from resumable.chaos.verify.outcome import Outcome, Results

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Outcome", "Report"]


class Report(Results):
    """The results of a campaign."""

    def table(self) -> str:
        """Return a row per kind of fault: cases, faults that happened, launches, steps retrained, violations."""
        return make_table(self)

    def timeline(self) -> str:
        """Describe each launch of the failed cases; of the first cases if none failed."""
        return make_timeline(self)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values; later versions may add keys, but never change the meaning of one."""
        return {
            "format": 1,
            "ok": self.ok,
            "status": self.status,
            "compared": self.coverage.compared,
            "not_compared": self.coverage.missing,
            "command": list(self.command),
            "seed": self.seed,
            "options": self.options,
            "seconds": round(self.seconds, 3),
            "environment": self.environment,
            "steps": len(self.baseline.trained()),
            "notes": self.notes,
            "impossible": self.impossible,
            "table": [row._asdict() for row in make_rows(self)],
            "cases": [_as_dict(outcome) for outcome in self.outcomes],
        }

    def html(self) -> str:
        """Return a self-contained page."""
        return make_page(self)

    def save(self, directory: Path) -> None:
        """Write `report.json` and `report.html`."""
        (directory / "report.json").write_text(json.dumps(self.as_dict(), indent=1) + "\n")
        (directory / "report.html").write_text(self.html())

    def __str__(self) -> str:
        return make_summary(self)


def _as_dict(outcome: Outcome) -> dict[str, Any]:
    values = {
        "name": outcome.name,
        "what": str(outcome.case),
        **outcome.case.as_dict(),
        "ok": outcome.ok,
        "starts": outcome.starts,
        "fired": outcome.fired,
        "reached": outcome.reached,
        "retrained": outcome.retrained,
        "violations": outcome.violations,
        "files": outcome.files,
    }
    if outcome.ok:
        return values
    values |= {"diagnosis": outcome.diagnosis.as_dict()}
    return {**values, "reproduction": outcome.reproduction, "timeline": tell_lines(outcome)}
