"""The numbers of two tensors, compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from resumable._inspect.values import Tensor

__all__ = ["TensorDifference", "compare_tensors"]

_AT_ONCE = 1 << 20  # elements, so that memory is needed for the two tensors and little else


@dataclass(frozen=True)
class TensorDifference:
    """A tensor that differs.

    Args:
        where: its place, with a dot between the keys.
        shapes: in the first checkpoint, and in the second.
        dtypes: the same.
        elements: how many there are; None where the shapes or types differ, so that no numbers were compared.
        differing: how many elements differ. Those that are no numbers in both are equal; -0.0 and 0.0 differ.
        largest: the largest absolute difference; None where it is none that NumPy can compute (8-bit floats).
    """

    where: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    elements: int | None = None
    differing: int | None = None
    largest: float | None = None


def compare_tensors(where: str, a: Tensor, b: Tensor) -> TensorDifference | None:
    """Compare two tensors; None where they are equal.

    Raises:
        CorruptCheckpointError: the file of one ends before it does.
    """
    kinds = (a.shape, b.shape), (a.dtype, b.dtype)
    if a.shape != b.shape or a.dtype != b.dtype:
        return TensorDifference(where, *kinds)
    one, other = _without_repeats(a.read(), b.read())
    repeats = a.size // one.size if one.size else 1
    differing, largest = 0, 0.0
    flat, flat_other = one.reshape(-1), other.reshape(-1)
    for start in range(0, flat.size, _AT_ONCE):
        left, right = flat[start : start + _AT_ONCE], flat_other[start : start + _AT_ONCE]
        if left.tobytes() != right.tobytes():
            count, most = _compare(left, right, a.dtype)
            differing, largest = differing + count, _larger(largest, most)
    if not differing:
        return None
    return TensorDifference(
        where, *kinds, a.size, differing * repeats, None if a.dtype.startswith("float8") else largest
    )


def _without_repeats(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Take one of the elements that a dimension repeats in both tensors, as after `expand`."""
    repeated = tuple(
        slice(0, 1) if not one and not other else slice(None) for one, other in zip(a.strides, b.strides, strict=True)
    )
    return a[repeated], b[repeated]


def _compare(a: NDArray[Any], b: NDArray[Any], dtype: str) -> tuple[int, float]:
    a, b = (one.astype(one.dtype.newbyteorder("=")) for one in (a, b))
    if dtype == "bfloat16":
        a, b = ((one.astype(np.uint32) << 16).view(np.float32) for one in (a, b))
    differ = _bits_differ(a, b)
    if a.dtype.kind in "fc":
        differ &= ~(np.isnan(a) & np.isnan(b))
    count = int(differ.sum())
    if not count:
        return 0, 0.0
    return count, _largest(a[differ], b[differ])


def _bits_differ(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    size = a.dtype.itemsize
    differ: NDArray[np.bool_] = (a.view(np.uint8).reshape(-1, size) != b.view(np.uint8).reshape(-1, size)).any(axis=1)
    return differ


def _largest(a: NDArray[Any], b: NDArray[Any]) -> float:
    if a.dtype.kind in "iu":
        wide = np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)  # exact, as it wraps around
        return float(wide.max())
    wider = a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)
    with np.errstate(all="ignore"):
        return float(np.abs(wider - b).max())


def _larger(one: float, other: float) -> float:
    """Return the larger number; where one is none, that."""
    return other if other != other or other > one else one  # noqa: PLR0124  # not a number
