"""Files of NumPy: `.npy`, one array, and `.npz`, a zip file of them. An array of objects is not read."""

from __future__ import annotations

import zipfile
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable._inspect.values import DTYPES, Opaque, Tensor
from resumable.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from numpy.typing import NDArray

__all__ = ["NPY", "is_npz", "read_npy", "read_npz"]

NPY = b"\x93NUMPY"  # how the file of one array begins
_DAMAGE = (ValueError, OSError, EOFError, MemoryError, RuntimeError, NotImplementedError, zipfile.BadZipFile)


def is_npz(file: BinaryIO) -> bool:
    """Return whether a zip file holds arrays and nothing else."""
    try:
        names = zipfile.ZipFile(file).namelist()
    except _DAMAGE:
        return False
    finally:
        file.seek(0)
    return bool(names) and all(name.endswith(".npy") for name in names)


def read_npz(file: BinaryIO) -> dict[str, Any]:
    """Return arrays by their names.

    Raises:
        CorruptCheckpointError: one of them is cut or damaged.
    """
    arrays = np.load(file, allow_pickle=False)
    return {name: _read(f"its array {name}", partial(arrays.__getitem__, name)) for name in arrays.files}


def read_npy(file: BinaryIO) -> Any:
    """Return one array.

    Raises:
        CorruptCheckpointError: it is cut or damaged.
    """
    return _read("its array", lambda: np.load(file, allow_pickle=False))


def _read(name: str, load: Callable[[], NDArray[Any]]) -> Any:
    try:
        array = load()
    except _DAMAGE as error:
        if "allow_pickle" in str(error):
            return Opaque("array of objects")
        raise CorruptCheckpointError(f"{name} is cut or damaged: {error}") from error
    if array.dtype.name in DTYPES:
        return Tensor(array.shape, array.dtype.name, lambda: array)
    return array.tolist()
