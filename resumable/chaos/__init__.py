"""Chaos: run a training script, break it on purpose, start it again, and prove that nothing was lost.

    report = resumable.chaos.run(["python", "train.py"], faults=["kill", "torn-write"])
    assert report.ok, report.timeline()

On the command line it is `resumable chaos run -- python train.py`. A script that saves its weights neither by
`CheckpointStore` nor by Lightning, and leaves no file with them, shows them at its end:
`resumable.chaos.record_weights(model)`.
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

# Every watched process imports this package for its agent, and needs nothing of this.
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
    """Show the weights to a chaos run, which compares them with those of the baseline run, bit for bit.

    What is shown last counts. Nothing happens where no chaos run watches, so that a script may leave it in.

    Args:
        weights: anything with `state_dict`, such as a model; or nested dictionaries, lists and tuples of tensors,
            arrays and plain values.
    """
    point("chaos.weights", weights)


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
