"""torchdata's `StatefulDataLoader`, on several ranks with its `StatefulDistributedSampler`."""

from __future__ import annotations

import warnings
from typing import Any

from benchmarks.compare.job import Job
from benchmarks.compare.peers.plain import Plain

with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # torchdata 0.11 uses a function that torch 2.11 deprecates
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

__all__ = ["Stateful"]


class Stateful(Plain):
    """The script of the `DataLoader`, with the other classes."""

    kind: Any = StatefulDataLoader
    distributed: Any = StatefulDistributedSampler
    state = Job.state
    load = Job.load
