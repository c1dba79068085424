"""Uniform random numbers per sample, computed from the sample's key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from resumable.keyed import mix64

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from resumable.keyed import Words

__all__ = ["uniforms"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the increment of SplitMix64
_SHIFT = np.uint64(40)  # leaves the 24 bits that a float32 has


def uniforms(keys: Words, count: int) -> NDArray[np.float32]:
    """Compute `count` numbers of [0, 1) for every key.

    Number `j` of a key is the output of SplitMix64 behind `j + 1` steps from that key, mixed once more. Its high 24
    bits, times 2**-24, are held by a float32 exactly, so that 1.0 never comes up. A number depends on nothing but the
    key and `j`; test vectors pin it.

    Args:
        keys: 64-bit keys, shape `(samples,)`.
        count: numbers per key.

    Returns:
        Array of shape `(samples, count)`.
    """
    steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    words = mix64(mix64(keys[:, None] + steps) ^ _GOLDEN)
    return (words >> _SHIFT).astype(np.float32) * np.float32(2**-24)
