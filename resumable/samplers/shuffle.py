"""Every sample once per epoch, in an order that differs from epoch to epoch."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from resumable._randomness.keyed import IntArray, check_seed
from resumable.samplers.base import check_length, check_range
from resumable.samplers.permutation import Permutation

__all__ = ["Shuffle"]


class Shuffle:
    """A new pseudo-random permutation in every epoch.

    Args:
        length: number of samples `N` to draw from.
        seed: selects the order, together with the epoch.
        num_samples: positions per epoch; `N` by default. Fewer gives a part of the permutation, more goes on with
            further permutations.

    Raises:
        ConfigurationError: a length below 1, or a seed that is negative or no integer.
    """

    def __init__(self, length: int, *, seed: int = 0, num_samples: int | None = None) -> None:
        self._samples = check_length(length, "the length of the data")
        self._seed = check_seed(seed)
        self.length = self._samples if num_samples is None else check_length(num_samples, "num_samples")
        self._permutation = lru_cache(maxsize=2)(self._build)

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Compute the sample indices of the positions `start..stop-1`; shape `(stop - start,)`."""
        check_range(start, stop, self.length)
        parts = []
        for lap in range(start // self._samples, -(-stop // self._samples)):
            offset = lap * self._samples
            first, last = max(start - offset, 0), min(stop - offset, self._samples)
            parts.append(self._permutation(epoch, lap).range(first, last))
        return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, np.int64)])

    def spec(self) -> dict[str, int | str]:
        """Name of the algorithm, seed, number of positions, and of samples where they differ."""
        spec: dict[str, int | str] = {"name": "feistel8-v1", "length": self.length, "seed": self._seed}
        return spec if self.length == self._samples else {**spec, "samples": self._samples}

    def _build(self, epoch: int, lap: int) -> Permutation:
        key = (self._seed, epoch) if lap == 0 else (self._seed, epoch, lap)
        return Permutation(self._samples, *key)

    def __repr__(self) -> str:
        return f"Shuffle({self._samples}, seed={self._seed}, num_samples={self.length})"

    def __getstate__(self) -> dict[str, int]:
        return {"_samples": self._samples, "_seed": self._seed, "length": self.length}

    def __setstate__(self, state: dict[str, int]) -> None:
        self.__init__(state["_samples"], seed=state["_seed"], num_samples=state["length"])  # type: ignore[misc]
