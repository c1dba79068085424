"""A shuffle that reads the pages of a file in groups, for data that does not fit into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from resumable._randomness.keyed import IntArray, digest
from resumable.errors import ConfigurationError
from resumable.samplers.base import check_length
from resumable.samplers.blocks import Blocks

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["PagedShuffle"]


class PagedShuffle:
    """Every sample once per epoch, so that a run of positions touches few pages.

    It is `Blocks` where each page is a block, for samples that are not numbered page by page. It serves the purpose of
    FFCV's `QUASI_RANDOM`, as a function of the position.

    Args:
        pages: number of the page that each sample is on, shape `(n,)`; about 8 bytes are kept for each sample.
        window: pages per group.
        seed: selects the order, together with the epoch.

    Raises:
        ConfigurationError: pages that are no integers in one dimension, a window below 1, or a bad seed.
    """

    def __init__(self, pages: ArrayLike, *, window: int, seed: int = 0) -> None:
        array = _check_pages(pages)
        self.length = len(array)
        self._samples = np.argsort(array, kind="stable").astype(np.int64)
        self._sizes = np.unique(array, return_counts=True)[1].astype(np.int64)
        given = check_length(window, "the window of a paged shuffle")
        self._blocks = Blocks(self._sizes, block=None, window=given, seed=seed)

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Compute the sample indices of the positions `start..stop-1`; shape `(stop - start,)`."""
        samples: IntArray = self._samples[self._blocks.indices(epoch, start, stop)]
        return samples

    def spec(self) -> dict[str, int | str]:
        """Name of the algorithm, seed, number of positions, window, and a digest of what is on which page."""
        pages, inner = digest(np.concatenate([self._sizes, self._samples])), self._blocks.spec()
        spec: dict[str, int | str] = {"name": "paged-v1", "length": self.length, "seed": inner["seed"]}
        return {**spec, "window": inner["window"], "pages": pages}

    def __repr__(self) -> str:
        spec = self._blocks.spec()
        return f"PagedShuffle(<{len(self._sizes)} pages>, window={spec['window']}, seed={spec['seed']})"


def _check_pages(pages: ArrayLike) -> IntArray:
    array = np.asarray(pages)
    check_length(array.size, "the number of samples of a paged shuffle")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ConfigurationError(
            f"the pages of a paged shuffle must be integers in one dimension, but they have dtype {array.dtype} and "
            f"shape {array.shape}.\nWhich samples lie together could not be known. Give each sample's page number."
        )
    return array.astype(np.int64)
