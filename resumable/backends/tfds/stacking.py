"""Samples made into a batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from resumable.errors import DataError

__all__ = ["stack"]


def stack(samples: list[Any], where: str = "") -> Any:
    """Stack samples along a new first axis.

    Args:
        samples: nested dicts and tuples of arrays and numbers, all alike. Strings and bytes
            give lists.
        where: name of the part, for messages.

    Raises:
        DataError: a part has another shape in some samples.
    """
    first = samples[0]
    if isinstance(first, dict):
        return {name: stack([sample[name] for sample in samples], f"{where}/{name}".strip("/")) for name in first}
    if isinstance(first, tuple):
        return tuple(
            stack(list(part), f"{where}/{number}".strip("/")) for number, part in enumerate(zip(*samples, strict=True))
        )
    if isinstance(first, (str, bytes)):
        return samples
    arrays = [np.asarray(sample) for sample in samples]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise DataError(
            f"the samples of a batch have different shapes in {where or 'their only part'}: "
            f"{', '.join(map(str, sorted(shapes)[:4]))}.\nThey fit into no array. Give wrap(..., transform=...) that "
            "makes them alike, or collate=list to get lists of samples."
        )
    return np.stack(arrays)
