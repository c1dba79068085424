"""FFCV's mixup, with the proportions drawn from the batch's key, the same for the images and for their labels.

FFCV itself seeds the generator with the last index of the batch, so that every epoch and every seed have the same
proportions where the same sample comes last. And it draws them in a parallel loop, in which each thread draws from a
generator of its own: with several workers, the proportions of images and of their labels are not the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from ffcv.transforms import LabelMixup
from numba import prange

from resumable.backends.ffcv.compiling import compile_function
from resumable.backends.ffcv.keyed import mixed
from resumable.backends.ffcv.seeding import seed_generator

if TYPE_CHECKING:
    from ffcv.transforms import ImageMixup


__all__ = ["mixup"]

_SALT = np.uint64(0x6D69787570000001)  # one for images and labels


def mixup(operation: ImageMixup | LabelMixup, *, parallel: bool) -> Any:
    """Return a function of `(input, memory, batch key, indices)` that does what a mixup operation does."""
    proportions = compile_function(_proportions(operation))

    def of_images(images: Any, memory: Any, key: Any, indices: Any) -> Any:  # noqa: ARG001  # a keyed batch's signature
        shares = proportions(key, len(images))
        for i in prange(len(images)):
            memory[i] = shares[i] * images[i] + (1 - shares[i]) * images[i - 1]
        return memory

    def of_labels(labels: Any, memory: Any, key: Any, indices: Any) -> Any:  # noqa: ARG001  # a keyed batch's signature
        shares = proportions(key, len(labels))
        for i in range(len(labels)):
            memory[i, 0] = labels[i][0]
            memory[i, 1] = labels[i - 1][0]
            memory[i, 2] = shares[i]
        return memory

    if isinstance(operation, LabelMixup):
        return compile_function(of_labels)
    return compile_function(of_images, parallel=parallel)


def _proportions(operation: ImageMixup | LabelMixup) -> Any:
    alpha, same, salt = float(operation.alpha), bool(operation.same_lambda), _SALT

    def proportions(key: Any, count: Any) -> Any:
        seed_generator(mixed(key, salt))
        shares = np.empty(count)
        if same:
            shares[:] = np.random.beta(alpha, alpha)  # noqa: NPY002  # compiled code draws from it
        else:
            for i in range(count):
                shares[i] = np.random.beta(alpha, alpha)  # noqa: NPY002  # compiled code draws from it
        return shares

    return proportions
