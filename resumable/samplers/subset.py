"""A part of the data, in the order of another sampler."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from resumable.errors import ConfigurationError
from resumable.keyed import IntArray, digest
from resumable.samplers.base import check_length

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from resumable.samplers.base import Sampler

__all__ = ["Subset"]


class Subset:
    """Maps what another sampler gives through a table of sample indices.

    Args:
        table: sample indices, shape `(n,)`; kept as it is, so the memory is that of the table.
        inner: sampler over `0..n-1`.

    Raises:
        ConfigurationError: the table is empty, has another shape, or other values than non-negative integers.
    """

    def __init__(self, table: ArrayLike, inner: Sampler) -> None:
        array = np.asarray(table)
        check_length(array.size, "the number of indices of a subset")
        if array.ndim != 1 or array.dtype.kind not in "iu" or int(array.min()) < 0:
            raise ConfigurationError(
                f"the indices of a subset must be integers of 0 or more in one dimension, but they have dtype "
                f"{array.dtype}, shape {array.shape} and minimum {array.min()}.\n"
                "They would select no sample. Give a list of sample indices."
            )
        self._table = array.astype(np.int64)
        self._inner = inner
        self.length = inner.length

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Compute the sample indices of the positions `start..stop-1`; shape `(stop - start,)`."""
        return self._table[self._inner.indices(epoch, start, stop)]

    def spec(self) -> dict[str, int | str]:
        """The inner sampler's spec, and a digest of the table."""
        return {**self._inner.spec(), "subset": digest(self._table)}

    def __repr__(self) -> str:
        return f"Subset(<{len(self._table)} indices>, {self._inner!r})"
