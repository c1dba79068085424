"""Draws with replacement, all samples alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from resumable._randomness.keyed import check_seed, derive, random_u64, scale
from resumable.samplers.base import check_length, check_range

if TYPE_CHECKING:
    from resumable._randomness.keyed import IntArray

__all__ = ["Uniform"]


class Uniform:
    """Draw any sample with the same probability at every position, with replacement, in O(1) memory.

    Args:
        length: number of samples `N` to draw from.
        seed: selects the draws, together with the epoch.
        num_samples: positions per epoch; `N` by default.

    Raises:
        ConfigurationError: a length below 1, or a seed that is negative or no integer.
    """

    def __init__(self, length: int, *, seed: int = 0, num_samples: int | None = None) -> None:
        self._samples = check_length(length, "the length of the data")
        self._seed = check_seed(seed)
        self.length = self._samples if num_samples is None else check_length(num_samples, "num_samples")

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Draw the sample indices of the positions `start..stop-1`; shape `(stop - start,)`."""
        check_range(start, stop, self.length)
        key = derive(self._samples, self._seed, epoch, words=2, purpose=b"uniform")
        return scale(random_u64(key, np.arange(start, stop)), self._samples).view(np.int64)

    def spec(self) -> dict[str, int | str]:
        """Name of the algorithm, seed, number of positions, and of samples."""
        return {"name": "uniform-v1", "length": self.length, "seed": self._seed, "samples": self._samples}

    def __repr__(self) -> str:
        return f"Uniform({self._samples}, seed={self._seed}, num_samples={self.length})"
