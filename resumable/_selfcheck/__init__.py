"""Checks of a user's loaders, checkpoints and environment: `resumable check`, `verify` and `doctor`."""

from __future__ import annotations

from resumable._selfcheck.report import CheckReport
from resumable._selfcheck.trials import check

__all__ = ["CheckReport", "check"]
