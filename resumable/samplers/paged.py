"""A shuffle that reads the pages of a file in groups, for data that does not fit into memory."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable._randomness.keyed import IntArray, check_seed, digest
from resumable.errors import ConfigurationError
from resumable.samplers.base import check_length, check_range
from resumable.samplers.permutation import Permutation

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["PagedShuffle"]


class PagedShuffle:
    """Every sample once per epoch, so that a run of positions touches few pages.

    The pages are shuffled and cut into groups of `window`; the samples of a group are shuffled among each other, and
    the groups come one after the other. A reader needs the pages of one group in memory, at a border those of two. With
    a window of all pages it is a uniform shuffle. It serves the purpose of FFCV's `QUASI_RANDOM`, as a function of the
    position.

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
        self._firsts = np.cumsum(self._sizes) - self._sizes
        self._window = min(check_length(window, "the window of a paged shuffle"), len(self._sizes))
        self._seed = check_seed(seed)
        self._begin_caches()

    def _begin_caches(self) -> None:
        self._layout = lru_cache(maxsize=2)(self._lay_out)
        self._shuffle = lru_cache(maxsize=4)(self._shuffle_group)

    def indices(self, epoch: int, start: int, stop: int) -> IntArray:
        """Compute the sample indices of the positions `start..stop-1`; shape `(stop - start,)`."""
        check_range(start, stop, self.length)
        parts = [np.empty(0, np.int64)]
        borders = self._layout(epoch).borders
        group = int(np.searchsorted(borders, start, side="right")) - 1
        while start < stop:
            last = min(stop, int(borders[group + 1]))
            parts.append(self._in_group(epoch, group, start, last))
            start, group = last, group + 1
        return np.concatenate(parts)

    def _in_group(self, epoch: int, group: int, start: int, stop: int) -> IntArray:
        layout = self._layout(epoch)
        begin = int(layout.borders[group])
        places = begin + self._shuffle(epoch, group).range(start - begin, stop - begin)
        order = np.searchsorted(layout.ends, places, side="right")
        pages = layout.pages[order]
        within = places - (layout.ends[order] - self._sizes[pages])
        samples: IntArray = self._samples[self._firsts[pages] + within]
        return samples

    def _lay_out(self, epoch: int) -> _Layout:
        pages = Permutation(len(self._sizes), self._seed, epoch).range(0, len(self._sizes))
        ends = np.cumsum(self._sizes[pages])
        return _Layout(pages, ends, np.concatenate([[0], ends[self._window - 1 : -1 : self._window], ends[-1:]]))

    def _shuffle_group(self, epoch: int, group: int) -> Permutation:
        borders = self._layout(epoch).borders
        return Permutation(int(borders[group + 1] - borders[group]), self._seed, epoch, group + 1)

    def spec(self) -> dict[str, int | str]:
        """Name of the algorithm, seed, number of positions, window, and a digest of what is on which page."""
        pages = digest(np.concatenate([self._sizes, self._samples]))
        spec: dict[str, int | str] = {"name": "paged-v1", "length": self.length, "seed": self._seed}
        return {**spec, "window": self._window, "pages": pages}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in {"_layout", "_shuffle"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin_caches()

    def __repr__(self) -> str:
        return f"PagedShuffle(<{len(self._sizes)} pages>, window={self._window}, seed={self._seed})"


class _Layout(NamedTuple):
    """The pages of an epoch in their order, the position after each, and the positions at which groups begin."""

    pages: IntArray
    ends: IntArray
    borders: IntArray


def _check_pages(pages: ArrayLike) -> IntArray:
    array = np.asarray(pages)
    check_length(array.size, "the number of samples of a paged shuffle")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ConfigurationError(
            f"the pages of a paged shuffle must be integers in one dimension, but they have dtype {array.dtype} and "
            f"shape {array.shape}.\nWhich samples lie together could not be known. Give each sample's page number."
        )
    return array.astype(np.int64)
