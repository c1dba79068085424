"""Checks of a user's own loaders, checkpoints and environment: what `resumable check`, `verify` and `doctor` do."""

from __future__ import annotations

from resumable._selfcheck.report import CheckReport
from resumable._selfcheck.trials import check

__all__ = ["CheckReport", "check"]
