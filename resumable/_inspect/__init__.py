"""Inspect checkpoints: what they contain, how two of them differ, and which samples a batch contains."""

from __future__ import annotations

from resumable._inspect.batches import Samples, samples
from resumable._inspect.inspection import (
    Diff,
    Inspection,
    Part,
    StateDifference,
    TensorDifference,
    ValueDifference,
    diff,
    inspect,
)
from resumable._inspect.reading import Step
from resumable._inspect.states import LoaderState

__all__ = [
    "Diff",
    "Inspection",
    "LoaderState",
    "Part",
    "Samples",
    "StateDifference",
    "Step",
    "TensorDifference",
    "ValueDifference",
    "diff",
    "inspect",
    "samples",
]
