"""Chaos: run a training script, break it on purpose, start it again, and prove that nothing was lost.

    report = resumable.chaos.run(["python", "train.py"], faults=["kill", "torn-write"])
    assert report.ok, report.timeline()

On the command line it is `resumable chaos run -- python train.py`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resumable.chaos.api import replay, run
    from resumable.chaos.plan import FAULTS, Case, Fault, Leg
    from resumable.chaos.report import Outcome, Report

__all__ = ["FAULTS", "Case", "Fault", "Leg", "Outcome", "Report", "replay", "run"]

# Every watched process imports this package for its agent, and needs nothing of this.
_LAZY = {
    "FAULTS": "resumable.chaos.plan",
    "Case": "resumable.chaos.plan",
    "Fault": "resumable.chaos.plan",
    "Leg": "resumable.chaos.plan",
    "Outcome": "resumable.chaos.report",
    "Report": "resumable.chaos.report",
    "replay": "resumable.chaos.api",
    "run": "resumable.chaos.api",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
