"""FFCV's orders, said as samplers of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from ffcv.traversal_order import QuasiRandom, Random, Sequential

from resumable import samplers
from resumable.backends.ffcv.file import pages_of_samples
from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from ffcv.loader import Loader

    from resumable.samplers import Sampler

__all__ = ["find_order"]


def find_order(loader: Loader, seed: int, window: int) -> Sampler:
    """Return the order of a loader, of its `indices` if it has any.

    Args:
        loader: FFCV's.
        seed: of our loader; FFCV's own is not looked at.
        window: pages that `QUASI_RANDOM` shuffles together.

    Raises:
        UnsupportedError: an order of the user's own.
    """
    length = int(loader.reader.num_samples)
    indices = np.asarray(loader.indices).astype(np.int64)
    inner = _inner(loader, indices, seed, window)
    if np.array_equal(indices, np.arange(length)):
        return inner
    return samplers.Subset(indices, inner)


def _inner(loader: Loader, indices: np.ndarray, seed: int, window: int) -> Sampler:
    order, count = type(loader.traversal_order), len(indices)
    if order is Sequential:
        return samplers.Sequential(count)
    if order is Random:
        return samplers.Shuffle(count, seed=seed)
    if order is QuasiRandom:
        pages = pages_of_samples(loader.reader)[indices]
        return samplers.PagedShuffle(pages, window=window, seed=seed)
    raise UnsupportedError(
        f"the Loader has an order of your own, {order.__qualname__}, which gives whole epochs.\n"
        "It may depend on the epochs before, so nothing would tell where a resumed run goes on. Give the order as "
        "wrap(..., sampler=...), a function of the position, and order=OrderOption.SEQUENTIAL to the Loader."
    )
