"""Digests of samples and weights, used to compare the runs of a case.

Each sample has its own digest, so the digests do not depend on batch borders or on ranks. Digests of weights allow
rounding errors with more than two ranks:

gloo's all-reduce has only one way to sum the gradients of two ranks. With more ranks, a restarted process sums them in
a different order, because DistributedDataParallel rebuilds its buckets after the first step of a process. The last bits
of the weights then differ, and so do all digests. So each tensor of numbers also gets a *sketch*: its norm, and four
sums of its numbers with random signs, which are the same in every process. If two tensors are far apart, so are some of
the sums.

    float32[4, 4]: 8c1f03c1a1b5d4e7 ~ 1.25,0.5,-0.25,1.0,0.75
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable import _content
from resumable._content import Array, digest_arrays, digest_of, leaves_of
from resumable._order.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "EXACT",
    "OF_ONE_LAUNCH",
    "SEPARATOR",
    "as_array",
    "digest_samples",
    "digest_weights",
    "is_lost",
    "parts_of",
    "weight_sketch",
    "without_digest",
]


SEPARATOR = " ~ "
EXACT = 2  # maximum number of ranks with bit-identical weights
OF_ONE_LAUNCH = {"best_model_path", "kth_best_model_path"}  # in Lightning's ModelCheckpoint: files of a launch
_SUMS = 4


def digest_samples(batch: Any) -> list[str]:
    """Digest a batch: one digest per sample if all of its parts have one row per sample, else one of the whole batch.

    Args:
        batch: tensors, arrays, numbers, strings and objects in dictionaries, lists and tuples.
    """
    parts = [leaf for _, leaf in leaves_of(batch, lists=True)]
    arrays = [part for part in parts if isinstance(part, Array)]
    lengths = {array.rows for array in arrays}
    if len(arrays) == len(parts) and len(lengths) == 1 and (length := lengths.pop()):
        return [digest_arrays(array.row(number) for array in arrays) for number in range(length)]
    return [digest_of(batch)]


def is_lost(content: Any, *, plain: bool = False) -> bool:
    """Return whether a tensor or array in nested values is entirely NaN, as in a model that diverged.

    Infinity proves nothing: masks contain it, and so does the best loss before the first evaluation.

    Args:
        content: of a checkpoint, or weights.
        plain: whether single numbers count as well.
    """
    return any(_is_lost(leaf, plain=plain) for _, leaf in leaves_of(content, lists=not plain))


def _is_lost(leaf: Any, *, plain: bool) -> bool:
    if isinstance(leaf, float):
        return plain and math.isnan(leaf)
    return isinstance(leaf, Array) and (plain or leaf.rows is not None) and leaf.is_lost()


def parts_of(content: Any, opened: Callable[[Any], Any] | None = None) -> dict[str, str]:
    """Return a text for each part of nested objects, by dotted path; with sketches if there are more than two ranks.

    Args:
        content: of a checkpoint, or weights.
        opened: returns what is compared of each part; None for everything.
    """
    if not _is_rounded():
        return _content.parts_of(content, opened)
    return _content.parts_of(content, lambda node: as_array(opened(node) if opened else node), weight_sketch)


def digest_weights(weights: Any) -> str:
    """Digest nested plain values and tensors; above two ranks, a digest of everything that is exact, and sketches."""
    if not _is_rounded():
        return digest_of(weights)
    texts = _content.parts_of(weights, as_array, weight_sketch)
    sketches = [text.partition(SEPARATOR)[2] for text in texts.values() if SEPARATOR in text]
    rest = digest_of([f"{path}: {without_digest(text)}" for path, text in texts.items()])
    return SEPARATOR.join([f"{rest}: {digest_of(weights)}", *sketches])


def without_digest(text: str) -> str:
    """Return what must be the same in a part: kind and shape of a tensor, nothing of a number, else the whole text."""
    if SEPARATOR not in text:
        return text
    head, colon, _ = text.partition(": ")
    return head if colon else ""


def _is_rounded() -> bool:
    return World.detect().size > EXACT


def as_array(node: Any) -> Any:
    """Return a list of numbers as an array, which can have a sketch, and anything else unchanged."""
    listed = isinstance(node, (list, tuple)) and node and all(type(value) is float for value in node)
    return np.array(node) if listed else node


def weight_sketch(leaf: Any) -> str:
    """Return the text that is added to a leaf to compare it up to rounding."""
    array = Array("float", np.asarray(leaf)) if type(leaf) is float else leaf
    numbers = array.numbers if isinstance(array, Array) else None
    if numbers is None or not numbers.size:
        return ""
    signs = np.random.default_rng(0).integers(0, 256, numbers.size, dtype=np.uint8)
    sums = [float(np.sum(np.where(signs >> bit & 1, numbers, -numbers))) for bit in range(_SUMS)]
    return SEPARATOR + ",".join(map(repr, [float(np.linalg.norm(numbers)), *sums]))
