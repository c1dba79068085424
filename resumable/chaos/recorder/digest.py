"""Digests of what was trained on: of each sample, so that they do not depend on the borders of batches or on ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._parts import as_array, digest_values

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["digest_content", "digest_samples", "is_lost"]


def digest_samples(batch: Any) -> list[str]:
    """Digest a batch: one digest per sample where every part of it has a row per sample, else one of the whole.

    Args:
        batch: tensors, arrays, numbers and texts in dictionaries, lists and tuples.
    """
    parts = [as_array(leaf) for leaf in _leaves(batch)]
    lengths = {len(part) if isinstance(part, np.ndarray) and part.ndim else None for part in parts}
    if len(lengths) == 1 and (length := lengths.pop()):
        return [digest_values(part[row] for part in parts) for row in range(length)]
    return [digest_values(parts)]


def digest_content(content: Any) -> str:
    """Digest nested plain values and tensors."""
    return digest_values(as_array(leaf) for leaf in _leaves(content, names=True))


def is_lost(content: Any, *, plain: bool = False) -> bool:
    """Return whether a tensor or an array in nested values is NaN in every place, as weights that diverged are.

    Infinity is no sign of it: masks hold it, and the best loss before the first one.

    Args:
        content: of a checkpoint, or weights.
        plain: a number by itself counts, too.
    """
    return any(_is_lost(leaf, plain=plain) for leaf in _leaves(content))


def _is_lost(leaf: Any, *, plain: bool) -> bool:
    if isinstance(leaf, (float, np.floating)):
        return plain and bool(np.isnan(leaf))
    array = as_array(leaf.float() if str(getattr(leaf, "dtype", "")) == "torch.bfloat16" else leaf)
    many = isinstance(array, np.ndarray) and array.size > 0 and (plain or array.ndim > 0) and array.dtype.kind in "fc"
    return many and bool(np.isnan(array).all())


def _leaves(node: Any, *, names: bool = False) -> Iterator[Any]:
    if isinstance(node, dict):
        for name, value in node.items():
            if names:
                yield str(name)
            yield from _leaves(value, names=names)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _leaves(value, names=names)
    else:
        yield node
