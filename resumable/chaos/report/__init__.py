"""What came out of a campaign: as an object, a table, a timeline in words, JSON, and a page with a picture."""

from __future__ import annotations

from resumable.chaos.report.outcome import Outcome, Report

__all__ = ["Outcome", "Report"]
