"""NVIDIA DALI: its own iterators, resumed from its own checkpoints, and pipelines whose samples our sampler chooses.

`resumable.wrap` takes a DALI iterator directly. `in_turn` combines several into one source. With `source`, our sampler
determines what DALI reads, so a run can change its number of ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable.backends.dali.forks import leave_garbage
from resumable.backends.dali.source import source
from resumable.backends.dali.turns import in_turn

if TYPE_CHECKING:
    from resumable._options import Options

__all__ = ["adapt", "in_turn", "source"]


def adapt(thing: Any, options: Options) -> Any:
    """Adapt a DALI iterator, a function of `checkpoints` that makes one, or the result of `in_turn`."""
    from resumable.backends.dali import iterators  # noqa: PLC0415  # imports DALI on first use only

    return iterators.adapt(thing, options)


leave_garbage()
