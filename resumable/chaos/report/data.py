"""The report as plain values, for `report.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable.chaos.report.table import make_rows
from resumable.chaos.report.text import tell_lines

if TYPE_CHECKING:
    from resumable.chaos.report.outcome import Outcome, Report

__all__ = ["as_data"]


def as_data(report: Report) -> dict[str, Any]:
    """Return everything; a later version may add names, and changes the meaning of none."""
    return {
        "format": 1,
        "ok": report.ok,
        "command": list(report.command.words),
        "seed": report.seed,
        "options": report.options,
        "seconds": round(report.seconds, 3),
        "steps": len(report.unharmed.trained()),
        "notes": report.notes,
        "impossible": report.impossible,
        "table": [row._asdict() for row in make_rows(report)],
        "cases": [_as_data(outcome) for outcome in report.outcomes],
    }


def _as_data(outcome: Outcome) -> dict[str, Any]:
    values = {
        "name": outcome.name,
        "what": str(outcome.case),
        **outcome.case.as_dict(),
        "ok": outcome.ok,
        "starts": outcome.starts,
        "fired": outcome.fired,
        "retrained": outcome.retrained,
        "violations": outcome.violations,
    }
    if outcome.ok:
        return values
    return {**values, "reproduction": outcome.reproduction, "timeline": tell_lines(outcome)}
