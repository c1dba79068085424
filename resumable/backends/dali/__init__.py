"""NVIDIA DALI: its own iterators, resumed by its own checkpoints; and pipelines that our sampler gives their samples.

`resumable.wrap` takes a DALI iterator as it is. `in_turn` makes one source of several, and `source` lets our sampler
say what DALI reads, for runs that change their number of ranks.
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
    """Adapt a DALI iterator, a function of `checkpoints` that makes one, or what `in_turn` returned."""
    from resumable.backends.dali import iterators  # noqa: PLC0415  # DALI itself is imported on first use only

    return iterators.adapt(thing, options)


leave_garbage()
