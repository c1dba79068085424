"""Draws with replacement, in proportion to weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from resumable._randomness.keyed import IntArray, Words, check_seed, derive, digest, random_u64, scale
from resumable.errors import ConfigurationError
from resumable.samplers.base import check_length, check_range

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["Weighted"]

_FINEST = 40
_SUM_BITS = 63


class Weighted:
    """Draw sample `i` with probability `weights[i] / sum(weights)` at every position, with replacement.

    Counter-based: the draw of a position depends on nothing but (seed, epoch, position). The weights are rounded to
    multiples of `2**-40` of the largest one and summed up as integers, so that no rounding of floating-point sums can
    change a draw. So a weight below `2**-41` of the largest one counts as 0 and is never drawn. From `2**23` weights on
    the unit doubles with every doubling of their number, so that the sum stays below `2**63`.

    Args:
        weights: shape `(n,)`, finite, 0 or more, at least one above 0; about 8 bytes are kept for each.
        seed: selects the draws, together with the epoch.
        num_samples: positions per epoch; `n` by default.

    Raises:
        ConfigurationError: weights that are no such numbers, or a bad seed or `num_samples`.
    """

    def __init__(self, weights: ArrayLike, *, seed: int = 0, num_samples: int | None = None) -> None:
        self._sums = _integer_sums(_check_weights(weights))
        self._seed = check_seed(seed)
        self.length = len(self._sums) if num_samples is None else check_length(num_samples, "num_samples")

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Draw the sample indices of the positions `start..stop-1`; shape `(stop - start,)`."""
        check_range(start, stop, self.length)
        key = derive(len(self._sums), self._seed, epoch, words=2, purpose=b"weighted")
        draws = scale(random_u64(key, np.arange(start, stop)), int(self._sums[-1]))
        return np.searchsorted(self._sums, draws, side="right").astype(np.int64)

    def spec(self) -> dict[str, int | str]:
        """Name of the algorithm, seed, number of positions, and a digest of the weights."""
        return {"name": "weighted-v1", "length": self.length, "seed": self._seed, "weights": digest(self._sums)}

    def __repr__(self) -> str:
        return f"Weighted(<{len(self._sums)} weights>, seed={self._seed}, num_samples={self.length})"


def _integer_sums(weights: NDArray[np.float64]) -> Words:
    """Running sums of the weights as integers, in units of the largest weight times 2**-40 (or more, for many weights).

    `n` weights of at most `2**bits` units, with `bits = 63 - n.bit_length()` at most, sum up to less than 2**63.
    """
    bits = min(_FINEST, _SUM_BITS - len(weights).bit_length())
    units = np.rint(weights / weights.max() * (1 << bits))
    return np.cumsum(units.astype(np.uint64), dtype=np.uint64)


def _check_weights(weights: ArrayLike) -> NDArray[np.float64]:
    try:
        array = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"weights must be numbers of 0 or more in one dimension, but they cannot be read as such: {error}.\n"
            "Nothing could be drawn by them. Give one weight for each sample."
        ) from error
    if array.ndim == 1 and array.size and np.isfinite(array).all() and array.min() >= 0 and array.any():
        return array
    raise ConfigurationError(
        f"weights must be finite numbers of 0 or more in one dimension, not all of them 0, but they have shape "
        f"{array.shape}"
        + (f", minimum {array.min()} and maximum {array.max()}" if array.size else "")
        + ".\nNothing could be drawn by them. Give one weight for each sample."
    )
