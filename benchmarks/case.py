"""The data that every contender reads: the same virtual dataset, with the same options."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

__all__ = ["Case", "Virtual"]


@dataclass(frozen=True, slots=True)
class Case:
    """One configuration of a loader.

    Args:
        length: samples of the dataset.
        workers: worker processes.
        cost: µs that a sample takes.
        batch: samples per batch.
        size: bytes of a sample, a tensor; 0 for an integer.
    """

    length: int
    workers: int = 0
    cost: int = 0
    batch: int = 64
    size: int = 0

    @property
    def batches(self) -> int:
        """Full batches of an epoch."""
        return self.length // self.batch


class Virtual:
    """A map-style dataset of any length: sample `i` is the integer `i`, and takes time to compute.

    Args:
        length: number of samples.
        cost: µs of busy waiting per sample.
    """

    def __init__(self, length: int, cost: int = 0) -> None:
        self._length = length
        self._seconds = cost * 1e-6

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int, rng: Any = None) -> int:  # it is passed, but not used
        if self._seconds:
            end = time.perf_counter() + self._seconds
            while time.perf_counter() < end:
                pass
        return index

    def __repr__(self) -> str:
        return f"Virtual({self._length})"
