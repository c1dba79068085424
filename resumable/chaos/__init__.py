"""Chaos testing: run a training script, break it on purpose, restart it, and prove that nothing was lost.

    report = resumable.chaos.run(["python", "train.py"], faults=["kill", "torn-write"])
    assert report.ok, report.timeline()

The command line equivalent is `resumable chaos run -- python train.py`. If a script saves its weights neither with
`CheckpointStore` nor with Lightning, and leaves no file with them, it should call
`resumable.chaos.record_weights(model)` at its end.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from resumable.failpoints import point

if TYPE_CHECKING:
    from resumable.chaos.api import replay, run
    from resumable.chaos.plan import FAULTS, Case, Fault, Launch
    from resumable.chaos.report import Outcome, Report

__all__ = ["FAULTS", "Case", "Fault", "Launch", "Outcome", "Report", "record_weights", "replay", "run"]

# Every observed process imports this package for its agent, which needs none of these.
_LAZY = {
    "FAULTS": "resumable.chaos.plan",
    "Case": "resumable.chaos.plan",
    "Fault": "resumable.chaos.plan",
    "Launch": "resumable.chaos.plan",
    "Outcome": "resumable.chaos.report",
    "Report": "resumable.chaos.report",
    "replay": "resumable.chaos.api",
    "run": "resumable.chaos.api",
}


def record_weights(weights: Any) -> None:
    """Report the weights to a chaos run, which compares them with the baseline run, bit for bit.

    The last call counts. Without a chaos run, the call does nothing, so it can stay in the script.

    Args:
        weights: anything with `state_dict`, such as a model; or nested dictionaries, lists and tuples of tensors,
            arrays and plain values.
    """
    point("chaos.weights", weights)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
