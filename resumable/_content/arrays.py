"""Arrays and tensors as types, shapes and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

__all__ = ["Array", "digest_arrays", "has_plain_numbers", "of_numpy", "of_tensor"]

_AT_ONCE = 1 << 20  # bytes; small enough for the CPU cache between the search for NaN and the digest
_INFINITY = {"float16": 0x7C00, "bfloat16": 0x7F80}  # bit patterns; larger ones are NaN
_BYTES_OF_LONG = 10 if np.finfo(np.longdouble).nmant == 63 else np.dtype(np.longdouble).itemsize  # noqa: PLR2004


@dataclass(slots=True, eq=False)
class Array:
    """An array, or the values of a tensor.

    Args:
        kind: the name of its type in its library.
        values: the numbers; for types that NumPy does not have, their bits.
    """

    kind: str
    values: NDArray[Any]

    @property
    def text(self) -> str:
        """Type, shape and digest; a single number is written out."""
        values = self.values
        if not values.shape and values.dtype.kind in "biuf" and self.kind not in _INFINITY:
            return f"{values.item()!r} {self.kind}"
        if not values.shape and self.kind in _INFINITY:
            return f"{float(_as_float(values, self.kind))!r} {self.kind}"
        return f"{self.kind}{list(values.shape)}: {digest_arrays([self])}"

    @property
    def rows(self) -> int | None:
        """Length of the first axis; None if there is none."""
        return len(self.values) if self.values.ndim else None

    def row(self, number: int) -> Array:
        """Return a row."""
        return Array(self.kind, np.asarray(self.values[number]))

    @property
    def numbers(self) -> NDArray[np.float64] | None:
        """The floating-point numbers, flattened; None for other types."""
        values = _as_float(self.values, self.kind)
        return np.asarray(values, np.float64).reshape(-1) if values.dtype.kind == "f" else None

    def is_lost(self) -> bool:
        """Return whether it holds numbers, and all of them are NaN."""
        if not self.values.size:
            return False
        return bool(_is_nan(self.values, self.kind).all())


def digest_arrays(arrays: Iterable[Array]) -> str:
    """Digest types, shapes and bytes of several arrays; all NaN are the same."""
    digest = blake2b(digest_size=8)
    for array in arrays:
        digest.update(f"{array.kind}{array.values.shape}".encode())
        flat = np.ascontiguousarray(array.values).reshape(-1)
        if flat.dtype.kind not in "fc" and array.kind not in _INFINITY:
            digest.update(flat.view(np.uint8).data)
            continue
        length = max(1, _AT_ONCE // flat.itemsize)
        for start in range(0, flat.size, length):
            digest.update(_without_payloads(flat[start : start + length], array.kind).data)
    return digest.hexdigest()


def _without_payloads(values: NDArray[Any], kind: str) -> NDArray[np.uint8]:
    """Return the bytes of numbers, with the same NaN everywhere."""
    if _has_nan(values, kind):
        values = np.where(_is_nan(values, kind), _nan(values, kind), values)
    if values.dtype.char in "gG":  # some of their bytes are padding
        return np.ascontiguousarray(
            values.view(np.uint8).reshape(-1, np.dtype(np.longdouble).itemsize)[:, :_BYTES_OF_LONG]
        )
    return values.view(np.uint8)


def _has_nan(values: NDArray[Any], kind: str) -> bool:
    if kind in _INFINITY:
        return bool((values.view(np.uint16) & 0x7FFF).max() > _INFINITY[kind])
    plain = values.view(values.real.dtype) if values.dtype.kind == "c" else values
    least = np.minimum.reduce(plain)  # NaN if there is one
    return bool(least != least)  # noqa: PLR0124


def _is_nan(values: NDArray[Any], kind: str) -> NDArray[np.bool_]:
    if kind in _INFINITY:
        found: NDArray[np.bool_] = (values.view(np.uint16) & 0x7FFF) > _INFINITY[kind]
        return found
    return np.isnan(values) if values.dtype.kind in "fc" else np.zeros(values.shape, bool)


def _nan(values: NDArray[Any], kind: str) -> NDArray[Any]:
    if kind in _INFINITY:
        return np.asarray(_INFINITY[kind] + 1, np.uint16).view(values.dtype)
    return np.asarray(complex(np.nan, np.nan) if values.dtype.kind == "c" else np.nan, values.dtype)


def _as_float(values: NDArray[Any], kind: str) -> Any:
    if kind == "bfloat16":
        return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return values


def of_numpy(value: Any) -> Any:
    """Return an array, or its parts: objects, fields, or the values under a mask."""
    if isinstance(value, np.ma.MaskedArray):
        return {
            "mask": np.ma.getmaskarray(value),
            "values": np.where(value.mask, np.zeros((), value.dtype), value.data),
        }
    array = np.asarray(value)
    if array.dtype.names is not None:  # the bytes between fields are padding
        return {name: array[name] for name in array.dtype.names}
    if array.dtype.hasobject or array.dtype.kind in "OT":
        return array.tolist() if array.ndim else [array.item()]
    return Array(str(array.dtype), array)


def of_tensor(torch: Any, tensor: Any) -> Any:
    """Return the values of a tensor on this rank; a text if it has none.

    Args:
        torch: the module.
        tensor: of any layout, type and device.
    """
    if type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter:
        try:
            return Array(_kind(tensor.dtype), tensor.detach().numpy())
        except (TypeError, RuntimeError, NotImplementedError):
            pass  # NumPy cannot read it directly
    if tensor.device.type == "meta":
        return "a tensor on the device meta has no values"
    return _of_other(torch, tensor.detach())


def has_plain_numbers(tensor: Any) -> bool:
    """Return whether the numbers of a tensor can be read without a copy or a conversion."""
    return tensor.device.type == "cpu" and str(tensor.layout) == "torch.strided" and not tensor.is_quantized


def _of_other(torch: Any, tensor: Any) -> Any:
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()  # of a DTensor
    if tensor.is_nested:
        return list(tensor.unbind())
    if hasattr(type(tensor), "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return {name: getattr(tensor, name) for name in names}
    if tensor.layout != torch.strided:
        return _of_sparse(torch, tensor)
    kind = _kind(tensor.dtype)
    tensor = (tensor.dequantize() if tensor.is_quantized else tensor).cpu().resolve_conj().resolve_neg()
    try:
        return Array(kind, tensor.numpy())
    except TypeError:  # a type that NumPy does not have
        return Array(kind, _bits(torch, tensor.contiguous()))


@cache
def _kind(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _bits(torch: Any, tensor: Any) -> Any:
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.view(width).numpy()


def _of_sparse(torch: Any, tensor: Any) -> dict[str, Any]:
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce()
        return {"shape": list(tensor.shape), "indices": tensor.indices(), "values": tensor.values()}
    by_rows = tensor.layout in {torch.sparse_csr, torch.sparse_bsr}
    names = ("crow_indices", "col_indices") if by_rows else ("ccol_indices", "row_indices")
    return {"shape": list(tensor.shape), **{name: getattr(tensor, name)() for name in (*names, "values")}}
