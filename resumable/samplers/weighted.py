"""Draws with replacement, in proportion to weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from resumable.errors import ConfigurationError
from resumable.keyed import IntArray, Words, check_seed, derive, digest, random_u64
from resumable.samplers.base import check_length, check_range

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["Weighted"]

_UNIT = 1 << 40


class Weighted:
    """Draw sample `i` with probability `weights[i] / sum(weights)` at every position, with replacement.

    Counter-based: the draw of a position depends on nothing but (seed, epoch, position). The weights are rounded to
    multiples of 2**-40 of the largest one and summed up as integers, so that no rounding of floating-point sums can
    change a draw.

    Args:
        weights: shape `(n,)`, finite, 0 or more, at least one above 0; about 8 bytes are kept for each.
        seed: selects the draws, together with the epoch.
        num_samples: positions per epoch; `n` by default.

    Raises:
        ConfigurationError: weights that are no such numbers, or a bad seed or `num_samples`.
    """

    def __init__(self, weights: ArrayLike, *, seed: int = 0, num_samples: int | None = None) -> None:
        self._sums = _integer_sums(np.asarray(weights, dtype=np.float64))
        self._seed = check_seed(seed)
        self.length = len(self._sums) if num_samples is None else check_length(num_samples, "num_samples")

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Draw the sample indices of the positions `start..stop-1`; shape `(stop - start,)`."""
        check_range(start, stop, self.length)
        key = derive(len(self._sums), self._seed, epoch, words=2, purpose=b"weighted")
        draws = _scale(random_u64(key, np.arange(start, stop)), int(self._sums[-1]))
        return np.searchsorted(self._sums, draws, side="right").astype(np.int64)

    def spec(self) -> dict[str, int | str]:
        """Name of the algorithm, seed, number of positions, and a digest of the weights."""
        return {"name": "weighted-v1", "length": self.length, "seed": self._seed, "weights": digest(self._sums)}

    def __repr__(self) -> str:
        return f"Weighted(<{len(self._sums)} weights>, seed={self._seed}, num_samples={self.length})"


def _integer_sums(weights: NDArray[np.float64]) -> Words:
    """Running sums of the weights in units of 2**-40 of the largest; exact below 2**23 weights of equal size."""
    if (
        weights.ndim != 1
        or not weights.size
        or not np.isfinite(weights).all()
        or weights.min() < 0
        or not weights.any()
    ):
        raise ConfigurationError(
            f"weights must be finite numbers of 0 or more in one dimension, not all of them 0, but they have shape "
            f"{weights.shape}"
            + (f", minimum {weights.min()} and maximum {weights.max()}" if weights.size else "")
            + ".\nNothing could be drawn by them. Give one weight for each sample."
        )
    bits = max(1, 63 - len(weights).bit_length())
    unit = min(_UNIT, 1 << bits)
    return np.cumsum(np.rint(weights / weights.max() * unit).astype(np.uint64), dtype=np.uint64)


def _scale(words: Words, total: int) -> Words:
    """Map 64 random bits to `0..total-1`: the high word of a product of 64 by 64 bits."""
    low, high = words & np.uint64(0xFFFFFFFF), words >> np.uint64(32)
    t_low, t_high = np.uint64(total & 0xFFFFFFFF), np.uint64(total >> 32)
    carry = (
        ((low * t_low) >> np.uint64(32))
        + ((high * t_low) & np.uint64(0xFFFFFFFF))
        + ((low * t_high) & np.uint64(0xFFFFFFFF))
    )
    return (
        high * t_high + ((high * t_low) >> np.uint64(32)) + ((low * t_high) >> np.uint64(32)) + (carry >> np.uint64(32))
    )
