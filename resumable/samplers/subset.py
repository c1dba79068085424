"""A part of the data, in the order of another sampler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from resumable._randomness.keyed import IntArray, digest
from resumable.errors import ConfigurationError
from resumable.samplers.base import check_length

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from resumable.samplers.base import Sampler

__all__ = ["Subset"]

_LARGEST = np.iinfo(np.int64).max


class Subset:
    """Maps what another sampler gives through a table of sample indices.

    Args:
        table: sample indices, shape `(n,)`; kept as it is, so the memory is that of the table.
        inner: sampler over `0..n-1`.

    Raises:
        ConfigurationError: the table is empty, has another shape, or other values than integers in `0..2**63-1`.
    """

    def __init__(self, table: ArrayLike, inner: Sampler) -> None:
        array = np.asarray(table)
        check_length(array.size, "the number of indices of a subset")
        if array.ndim != 1 or array.dtype.kind not in "iu" or array.min() < 0 or array.max() > _LARGEST:
            values = f", minimum {array.min()} and maximum {array.max()}" if array.dtype.kind in "biuf" else ""
            raise ConfigurationError(
                "the indices of a subset must be integers in 0..2**63-1 in one dimension, but they have dtype "
                f"{array.dtype}, shape {array.shape}{values}.\n"
                "They would select no sample. Give a list of sample indices."
            )
        self._table = array.astype(np.int64)
        self._inner = inner
        self.length = inner.length

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Compute the sample indices of the positions `start..stop-1`; shape `(stop - start,)`.

        Raises:
            ConfigurationError: the inner sampler gives numbers that the table does not have.
        """
        rows = self._inner.indices(epoch, start, stop)
        if rows.size and not 0 <= rows.min() <= rows.max() < len(self._table):
            raise ConfigurationError(
                f"the subset has {len(self._table)} indices, numbered 0..{len(self._table) - 1}, but its inner sampler "
                f"{self._inner!r} asks for those numbered {rows.min()}..{rows.max()}.\n"
                f"There are no such samples. Make the inner sampler over {len(self._table)} samples."
            )
        return self._table[rows]

    def spec(self) -> dict[str, int | str]:
        """The inner sampler's spec, and a digest of the table; those of nested tables from the outermost inwards."""
        inner = self._inner.spec()
        tables = [digest(self._table), *([str(inner["subset"])] if "subset" in inner else [])]
        return {**inner, "subset": "/".join(tables)}

    def __repr__(self) -> str:
        return f"Subset(<{len(self._table)} indices>, {self._inner!r})"
