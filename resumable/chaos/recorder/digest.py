"""Digests of what was trained on: of each sample, so that they do not depend on the borders of batches or on ranks."""

from __future__ import annotations

import math
from typing import Any

from resumable._parts import Array, digest_arrays, digest_of, leaves_of

__all__ = ["digest_samples", "is_lost"]


def digest_samples(batch: Any) -> list[str]:
    """Digest a batch: one digest per sample where every part of it has a row per sample, else one of the whole.

    Args:
        batch: tensors, arrays, numbers, texts and objects in dictionaries, lists and tuples.
    """
    parts = [leaf for _, leaf in leaves_of(batch, lists=True)]
    arrays = [part for part in parts if isinstance(part, Array)]
    lengths = {array.rows for array in arrays}
    if len(arrays) == len(parts) and len(lengths) == 1 and (length := lengths.pop()):
        return [digest_arrays(array.row(number) for array in arrays) for number in range(length)]
    return [digest_of(batch)]


def is_lost(content: Any, *, plain: bool = False) -> bool:
    """Return whether a tensor or an array in nested values is NaN in every place, as weights that diverged are.

    Infinity is no sign of it: masks hold it, and the best loss before the first one.

    Args:
        content: of a checkpoint, or weights.
        plain: a number by itself counts, too.
    """
    return any(_is_lost(leaf, plain=plain) for _, leaf in leaves_of(content, lists=not plain))


def _is_lost(leaf: Any, *, plain: bool) -> bool:
    if isinstance(leaf, float):
        return plain and math.isnan(leaf)
    return isinstance(leaf, Array) and (plain or leaf.rows is not None) and leaf.is_lost()
