"""WebDataset over local tar files: shards in random order, a shuffle buffer of 1000, batches made in the workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import webdataset as wds

from benchmarks.contenders.written import again, busy, tars

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.case import Case

__all__ = ["Web"]


class Web:
    """It has no state: on a resume, it starts the epoch again."""

    def __init__(self, case: Case) -> None:
        read = _Read(case.cost)
        pipeline = wds.WebDataset(tars(case), shardshuffle=8, seed=0).shuffle(1000).map(read)
        batches = pipeline.batched(case.batch, collation_fn=torch.utils.data.default_collate)
        self._loader = wds.WebLoader(
            batches, batch_size=None, num_workers=case.workers, persistent_workers=case.workers > 0
        )

    def start(self, state: Any = None) -> Iterator[Any]:
        """Start an epoch."""
        assert state is None
        return again(self._loader)

    def state(self) -> Any:
        """There is none."""

    def state_at(self, step: int) -> Any:
        """There is none."""


class _Read:
    """Converts the bytes of a sample to a number or a tensor."""

    def __init__(self, cost: int) -> None:
        self._cost = cost

    def __call__(self, found: dict[str, Any]) -> Any:
        if self._cost:
            busy(self._cost)
        if "cls" in found:
            return int(found["cls"])
        return torch.frombuffer(bytearray(found["bin"]), dtype=torch.float32)
