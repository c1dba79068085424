"""Digests of samples and weights, so that the runs of a case can be compared.

Of each sample, so that they do not depend on the borders of batches or on ranks. Of weights, so that those of more than
two ranks can be compared up to rounding:

gloo's all-reduce adds up the gradients of two ranks in one way only. Of more ranks, a process that was started again
adds them in another order: DistributedDataParallel lays out its buckets again after a process's first step. Then the
last bits of the weights differ, and no digest is the same. So each tensor of numbers gets a *sketch*, too: its norm,
and four sums of its numbers with random signs, which are the same in every process. Where two tensors are far apart,
so are some of the sums.

    float32[4, 4]: 8c1f03c1a1b5d4e7 ~ 1.25,0.5,-0.25,1.0,0.75
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resumable import _content
from resumable._content import Array, digest_arrays, digest_of, leaves_of
from resumable._order.world import World

__all__ = [
    "EXACT",
    "SEPARATOR",
    "digest_samples",
    "digest_weights",
    "is_lost",
    "parts_of",
    "weight_sketch",
    "without_digest",
]


SEPARATOR = " ~ "
EXACT = 2  # ranks, at most, whose weights are the same bit for bit
_SUMS = 4


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


def parts_of(content: Any) -> dict[str, str]:
    """Return a text for each part of nested objects, by its dotted path; above two ranks with sketches."""
    return _content.parts_of(content, _opened, weight_sketch) if _is_rounded() else _content.parts_of(content)


def digest_weights(weights: Any) -> str:
    """Digest nested plain values and tensors; above two ranks, a digest of all that is not rounded, and sketches."""
    if not _is_rounded():
        return digest_of(weights)
    texts = _content.parts_of(weights, _opened, weight_sketch)
    sketches = [text.partition(SEPARATOR)[2] for text in texts.values() if SEPARATOR in text]
    rest = digest_of([f"{path}: {without_digest(text)}" for path, text in texts.items()])
    return SEPARATOR.join([f"{rest}: {digest_of(weights)}", *sketches])


def without_digest(text: str) -> str:
    """Return what has to be the same of a part: kind and shape of a tensor, nothing of a number, else all."""
    if SEPARATOR not in text:
        return text
    head, colon, _ = text.partition(": ")
    return head if colon else ""


def _is_rounded() -> bool:
    return World.detect().size > EXACT


def _opened(node: Any) -> Any:
    """Return a list of numbers as an array, so that it has a sketch."""
    listed = isinstance(node, (list, tuple)) and node and all(type(value) is float for value in node)
    return np.array(node) if listed else node


def weight_sketch(leaf: Any) -> str:
    """Return what is added to the text of a leaf, so that it can be compared up to rounding."""
    array = Array("float", np.asarray(leaf)) if type(leaf) is float else leaf
    numbers = array.numbers if isinstance(array, Array) else None
    if numbers is None or not numbers.size:
        return ""
    signs = np.random.default_rng(0).integers(0, 256, numbers.size, dtype=np.uint8)
    sums = [float(np.sum(np.where(signs >> bit & 1, numbers, -numbers))) for bit in range(_SUMS)]
    return SEPARATOR + ",".join(map(repr, [float(np.linalg.norm(numbers)), *sums]))
