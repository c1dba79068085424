"""Uniform random numbers per sample, computed from the sample's key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._randomness.keyed import mix64
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from resumable._randomness.keyed import Words

__all__ = ["check_indices", "uniforms"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the increment of SplitMix64
_SHIFT = np.uint64(40)  # leaves the 24 bits that a float32 has


def uniforms(keys: Words, count: int) -> NDArray[np.float32]:
    """Compute `count` numbers of [0, 1) for every key.

    Number `j` of a key is the output of SplitMix64 after `j + 1` steps from that key, mixed once more. Its high 24
    bits, times 2**-24, are held by a float32 exactly, so that 1.0 never comes up. A number depends on nothing but the
    key and `j`; test vectors pin it.

    Args:
        keys: 64-bit keys, shape `(samples,)`.
        count: numbers per key.

    Returns:
        Array of shape `(samples, count)`.
    """
    steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    words = mix64(mix64(keys[:, None] + steps) ^ _GOLDEN)
    return (words >> _SHIFT).astype(np.float32) * np.float32(2**-24)


def check_indices(operators: Iterable[Any], giver: object, count: int) -> None:
    """Refuse a graph that takes a number that there is not.

    Args:
        operators: of the pipeline.
        giver: what gives it samples, labels and uniforms.
        count: uniforms per sample.

    Raises:
        ConfigurationError: it takes `u[count]`, or one after it.
    """
    ours = ""
    for operator in operators:
        group, call = getattr(operator, "_group", None), getattr(operator, "_op", None)
        if group is not None and group.source_desc.source is giver:
            ours = group.instances[-1].name
        taken = {**getattr(call, "_init_args", {}), **getattr(call, "_call_args", {})}.get("at_0")
        of_ours = [node.name for node in operator.inputs or ()][:1] == [ours]
        if of_ours and isinstance(taken, int) and not -count <= taken < count:
            raise ConfigurationError(
                f"the graph takes u[{taken}], but source(..., uniforms={count}) gives each sample {count} random "
                f"numbers, u[0] to u[{count - 1}].\nEvery batch would fail. Use uniforms={max(taken + 1, -taken)}."
            )
