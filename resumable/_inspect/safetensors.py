"""Files of safetensors: a header in JSON that says where each tensor is, and the tensors."""

from __future__ import annotations

import json
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._inspect.values import DTYPES, Tensor
from resumable.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from typing import BinaryIO

    from numpy.typing import NDArray

__all__ = ["LARGEST_HEADER", "read_safetensors"]

LARGEST_HEADER = 100_000_000  # bytes, as the format says
_TYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "BOOL": "bool",
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}


def read_safetensors(file: BinaryIO, size: int) -> dict[str, Any]:
    """Return the tensors of a file by their names.

    Args:
        file: stays open as long as tensors are to be read.
        size: of the file in bytes.

    Raises:
        CorruptCheckpointError: it is cut or damaged.
    """
    length = int.from_bytes(file.read(8), "little")
    try:
        header = json.loads(file.read(length))
        tensors = {}
        for name, entry in header.items():
            if name != "__metadata__":
                tensors[name] = _tensor(file, 8 + length, entry, size)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptCheckpointError(f"its header is cut or damaged: {error}") from error
    return tensors


def _tensor(file: BinaryIO, data: int, entry: Any, size: int) -> Tensor:
    dtype, shape = _TYPES[entry["dtype"]], tuple(map(int, entry["shape"]))
    start, stop = map(int, entry["data_offsets"])
    if not 0 <= start <= stop <= size - data or stop - start != prod(shape) * DTYPES[dtype][0]:
        raise ValueError(f"a tensor of shape {shape} is said to be at the bytes {start} to {stop} of {size - data}")
    return Tensor(shape, dtype, partial(_read, file, data + start, stop - start, dtype, shape))


def _read(file: BinaryIO, start: int, length: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    file.seek(start)
    array: NDArray[Any] = np.frombuffer(file.read(length), f"<{DTYPES[dtype][1]}").reshape(shape)
    return array
