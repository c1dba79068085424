"""Shards cut into blocks: samples that lie together, whose order is computed from the sizes of the shards alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from resumable._randomness.keyed import digest
from resumable.errors import ConfigurationError
from resumable.samplers.base import check_length

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from resumable._randomness.keyed import IntArray

__all__ = ["Shards", "parse_sizes"]

_LARGEST = 1 << 62
_LONGEST_TEXT = 80  # characters of a state; the sizes are in it as a digest where they would take more
_MOST_SHARDS = 10**6  # that are listed from a text


class Shards:
    """Samples in shards, each cut into blocks of `size` samples; the last block of a shard may be shorter.

    The samples are numbered through, shard after shard, and so are the blocks. Where every shard but the last one is a
    multiple of `size`, the blocks are those of one shard, and no table is kept. Else about 50 bytes are, for a shard.

    Args:
        sizes: samples per shard, shape `(shards,)`; or the number of all samples.
        size: samples per block; None: every shard is a block, whatever its size.

    Attributes:
        length: number of samples.
        blocks: number of blocks.
        size: samples of a whole block.
        short: numbers of the blocks that are shorter, in ascending order.
        missing: samples that each of them lacks.
        text: the sizes as a state has them, short or as a digest; empty where there is one shard.

    Raises:
        ConfigurationError: sizes that are no integers of 0 or more, or a bad block size.
    """

    def __init__(self, sizes: ArrayLike | int, size: int | None) -> None:
        array = _check_sizes(sizes)
        self.length = int(array.sum())
        self.size = int(array.max()) if size is None else check_length(size, "the block of a block shuffle")
        if not (array[:-1] % self.size).any():
            array = np.array([self.length])
        counts = -(-array // self.size)
        self.blocks = int(counts.sum())
        _check_product(self.blocks, self.size)
        self._stops = np.cumsum(array)
        self._first_blocks = np.cumsum(counts) - counts
        lacking = counts * self.size - array
        self.short: IntArray = (self._first_blocks + counts - 1)[lacking > 0]
        self.missing: IntArray = lacking[lacking > 0]
        self.text = "" if len(array) == 1 else _text_of(array)

    def firsts(self, blocks: IntArray) -> IntArray:
        """Return the first sample of each block; an array of the same shape."""
        if len(self._stops) == 1:
            return blocks * self.size
        shard = self._shard(blocks)
        begin = np.where(shard > 0, self._stops[shard - 1], 0)
        firsts: IntArray = begin + (blocks - self._first_blocks[shard]) * self.size
        return firsts

    def spans(self, blocks: IntArray) -> IntArray:
        """Return the first sample of each block, and the one after its last; shape `(blocks, 2)`."""
        firsts = self.firsts(blocks)
        return np.stack([firsts, np.minimum(firsts + self.size, self._stops[self._shard(blocks)])], axis=1)

    def _shard(self, blocks: IntArray) -> IntArray:
        return np.searchsorted(self._first_blocks, blocks, side="right") - 1


def parse_sizes(text: str) -> IntArray | None:
    """Return the sizes of shards from the `text` of `Shards`; None where it is a digest.

    Raises:
        ValueError: it is neither.
    """
    if not {"x", ","} & set(text):
        return None
    runs = [tuple(map(int, run.split("x"))) for run in text.split(",")]
    sizes, counts = zip(*(run if len(run) == 2 else (*run, 1) for run in runs), strict=True)  # noqa: PLR2004  # a size and its count
    if min(counts) < 1 or sum(counts) > _MOST_SHARDS or max(sizes) > _LARGEST:
        raise ValueError(f"no state lists {sum(counts)} shards of up to {max(sizes)} samples")
    return np.repeat(np.array(sizes, np.int64), counts)


def _text_of(sizes: IntArray) -> str:
    """Write sizes as runs, "1000x99,417": 99 shards of 1000 samples and one of 417; else as a digest."""
    begins = np.flatnonzero(np.diff(sizes, prepend=-1))
    if len(begins) < _LONGEST_TEXT // 2 and len(sizes) <= _MOST_SHARDS:
        counts = np.diff(begins, append=len(sizes))
        runs = zip(sizes[begins].tolist(), counts.tolist(), strict=True)
        text = ",".join(f"{size}x{count}" if count > 1 else f"{size}" for size, count in runs)
        if len(text) <= _LONGEST_TEXT:
            return text
    return digest(sizes)


def _check_sizes(sizes: ArrayLike | int) -> IntArray:
    """Return the sizes of the shards that have samples."""
    try:
        array = np.asarray(sizes)
    except ValueError:  # lists of several lengths
        array = np.array([sizes], dtype=object)
    if array.ndim == 0:
        return np.array([check_length(sizes, "the number of samples of a block shuffle")])
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array.size and (array.min() < 0 or array.max() > _LARGEST)):
        numbers = array.size and array.dtype.kind in "iuf"
        values = f", minimum {array.min()} and maximum {array.max()}" if numbers else ""
        raise ConfigurationError(
            "the sizes of the shards must be integers of 0 or more in one dimension, but they have dtype "
            f"{array.dtype}, shape {array.shape}{values}.\n"
            "Which samples lie together could not be known. Give the number of samples of each shard, in their order; "
            "or one number, that of all samples."
        )
    check_length(_sum(array), "the number of samples in all shards")
    return array[array > 0].astype(np.int64)


def _sum(array: IntArray) -> int:
    """Add up integers without an overflow."""
    high, low = np.divmod(array.astype(np.int64), 1 << 32)
    return (int(high.sum()) << 32) + int(low.sum())


def _check_product(blocks: int, size: int) -> None:
    if blocks * size > _LARGEST:
        raise ConfigurationError(
            f"there are {blocks} blocks, and the largest has {size} samples: together they must not be above 2**62.\n"
            "Positions are 64-bit integers and would overflow. Cut the large shards: give a block of fewer samples."
        )
