"""What pickles are full of and is put together here, by our own functions: dicts, sizes, sets, bytes, tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._inspect.values import DTYPES, Name, Opaque, Tensor
from resumable.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["BUILDERS", "Storage", "storage_of"]

_KINDS = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "UntypedStorage": "uint8",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
}
_REPEATED = 4  # times that an element may stand in a tensor, besides in dimensions that repeat it throughout


@dataclass(frozen=True, eq=False)
class Storage:
    """The numbers of one or several tensors, which stay in the file.

    Args:
        dtype: type of its elements.
        read: gives its bytes.
        order: of the bytes, `"<"` or `">"`.
    """

    dtype: str
    read: Callable[[], bytes]
    order: str = "<"


def storage_of(pid: Any, read: Callable[[str], bytes], order: str) -> Storage | Opaque:
    """Return what a persistent id of torch's stands for: ("storage", kind, key, device, size)."""
    if isinstance(pid, tuple) and len(pid) > 2 and pid[0] == "storage" and isinstance(pid[1], Name):  # noqa: PLR2004
        dtype, key = _KINDS.get(pid[1].name), str(pid[2])
        if dtype is not None:
            return Storage(dtype, lambda: read(key), order)
    return Opaque("reference", pid)


def _tensor(storage: Any, offset: int, shape: Any, stride: Any, *_: Any) -> Tensor:
    return _tensor_of(storage, storage.dtype, offset, shape, stride)


def _tensor_with_dtype(
    storage: Any, offset: int, shape: Any, stride: Any, _grad: Any, _hooks: Any, dtype: Any, *_: Any
) -> Tensor:
    return _tensor_of(storage, dtype.name, offset, shape, stride)


def _tensor_of(storage: Storage, dtype: str, offset: int, shape: Any, stride: Any) -> Tensor:
    if not isinstance(storage, Storage):
        raise TypeError("no storage")
    shape, stride = tuple(shape), tuple(stride)
    numbers = (offset, *shape, *stride)
    if dtype not in DTYPES or len(shape) != len(stride) or not all(type(one) is int and one >= 0 for one in numbers):
        raise ValueError("no tensor")
    return Tensor(shape, dtype, lambda: _view(storage, dtype, offset, shape, stride))


def _view(storage: Storage, dtype: str, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> NDArray[Any]:
    """Look at a storage as a tensor. Dimensions that repeat an element are read once, and repeated without a copy."""
    size, name = DTYPES[dtype]
    raw = storage.read()
    flat = np.frombuffer(raw[: len(raw) // size * size], np.dtype(name).newbyteorder(storage.order))  # type: ignore[arg-type]
    last = offset + sum((length - 1) * step for length, step in zip(shape, stride, strict=True))
    counted = [length for length, step in zip(shape, stride, strict=True) if step]
    if 0 in shape:
        return np.empty(shape, flat.dtype)
    if last >= len(flat) or np.prod([float(one) for one in counted]) > _REPEATED * len(flat):
        raise CorruptCheckpointError(
            f"a tensor of shape {shape} needs {last + 1} elements, and {len(flat)} are there for it"
        )
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, [step * size for step in stride], writeable=False)


def _from_type(build: Any, _type: Any, args: Any, *_: Any) -> Any:
    """Give the tensor that a subclass, or one with attributes, is made of."""
    return BUILDERS[str(build)](*args)


def _first(value: Any, *_: Any) -> Any:
    return value


def _encoded(text: str, encoding: str) -> bytes:
    """Give the bytes that a pickle of protocol 2 writes as text."""
    if encoding not in {"latin1", "latin-1"}:
        raise ValueError("not how bytes are written")
    return text.encode("latin-1")


def _ordered(*pairs: Any) -> dict[Any, Any]:
    return dict(*pairs)


def _default(_: Any = None, *pairs: Any) -> dict[Any, Any]:
    return dict(*pairs)


def _bytes_only(raw: bytes = b"") -> bytes:
    """Give the bytes of a bytearray; not as many zeros as a number says."""
    if not isinstance(raw, bytes):
        raise TypeError("no bytes")
    return raw


_BUILTINS: dict[str, Callable[..., Any]] = {
    **{kind.__name__: kind for kind in (set, frozenset, list, tuple, dict, complex)},
    **dict.fromkeys(("bytes", "bytearray"), _bytes_only),
}
BUILDERS: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _ordered,
    "collections.defaultdict": _default,
    "torch.Size": tuple,
    "_codecs.encode": _encoded,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_with_dtype,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    "torch._tensor._rebuild_from_type_v2": _from_type,
    **{f"{module}.{name}": build for module in ("builtins", "__builtin__") for name, build in _BUILTINS.items()},
}
