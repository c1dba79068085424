"""Opens tokens and lengths: raw files, NumPy's, Megatron's with an index, and arrays; anything else is refused."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable.errors import ConfigurationError
from resumable.sources._mapped import Array
from resumable.sources._megatron import dtype_of, index_of
from resumable.sources._ranged import beginning, existing, open_integers

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from resumable.sources._files import Files
    from resumable.sources._ranged import Place, TokenSource

__all__ = ["open_tokens", "open_vector"]

_LLM_C = 20240520
_SEEN = 4096
_MAGICS = {
    b"\x93NUMPY": "a .npy",
    b"PK\x03\x04": "a zip, as .npz and torch.save write",
    b"MMIDIDX\x00": "an index of Megatron's",
    b"\x28\xb5\x2f\xfd": "compressed (zstd)",
    b"\xfd7zXZ\x00": "compressed (xz)",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\x89HDF\r\n": "an HDF5 file",
}
_NPY = 1 << 14  # bytes, in which the header of a vector is
_HIGH = 16  # a vocabulary has less than 2**20 tokens


def open_tokens(tokens: Any, dtype: DTypeLike | None, files: Files) -> TokenSource:
    """Open tokens for reading.

    Args:
        tokens: path or URL of a `.npy`, of a `.bin` without a header, or of Megatron's `.bin` with its `.idx` beside
            it; or an array of integers of shape `(n,)`.
        dtype: of the tokens of a `.bin`; None: what its index says, or `uint16`.
        files: reads remote ones.

    Raises:
        ConfigurationError: it is none of them, has another dtype or size than said, or has no tokens.
    """
    found = _open_tokens(tokens, None if dtype is None else np.dtype(dtype), files)
    if not found.count:
        raise ConfigurationError(f"{found.name} has no tokens.\nThere would be nothing to read. Check what wrote it.")
    return found


def _open_tokens(tokens: Any, dtype: np.dtype[Any] | None, files: Files) -> TokenSource:
    if not isinstance(tokens, (str, os.PathLike)) or Path(tokens).suffix == ".npy":
        return open_vector(tokens, "tokens", files, dtype)
    path = existing(tokens, files)
    index = index_of(tokens, files)
    if index is not None:
        said = dtype_of(index, files)
        _same_dtype(path, said, dtype)
        return open_integers(path, files, said)
    _refuse_formats(path, tokens, dtype, files)
    found = open_integers(path, files, _whole(dtype or np.dtype("<u2"), str(path)))
    if dtype is None and found.count:
        _refuse_other_formats(found)
    return found


def open_vector(values: Any, what: str, files: Files, dtype: np.dtype[Any] | None = None) -> TokenSource:
    """Open a `.npy` or take an array; of integers, shape `(n,)`.

    Raises:
        ConfigurationError: it is none, has another dtype or shape, or was cut.
    """
    if not isinstance(values, (str, os.PathLike)):
        array = np.asarray(values)
        _check_shape(array.shape, what)
        _same_dtype(what, _whole(array.dtype, what), dtype)
        return Array(array)
    path = existing(values, files)
    shape, found, offset = _npy_header(path, files)
    _check_shape(shape, str(path))
    _same_dtype(path, _whole(found, str(path)), dtype)
    return open_integers(path, files, found, offset, shape[0])


def _npy_header(path: Place, files: Files) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    file = io.BytesIO(beginning(path, files, _NPY))
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, found = read(file)
        return shape, found, file.tell()
    except ValueError as error:
        raise ConfigurationError(
            f"{path} is no .npy file, or was cut inside of its header: {error}.\n"
            "Nothing could be read from it. Write it with numpy.save; a file without a header is a .bin."
        ) from error


def _whole(dtype: np.dtype[Any], what: str) -> np.dtype[Any]:
    if dtype.kind not in "iu" or dtype == np.uint64:
        raise ConfigurationError(
            f"{what} must be of integers of at most 63 bits, but the dtype is {dtype}.\n"
            "Tokens and lengths would be rounded. Store them as integers, such as uint16, uint32 or int64."
        )
    return dtype


def _check_shape(shape: tuple[int, ...], what: str) -> None:
    if len(shape) != 1:
        raise ConfigurationError(
            f"{what} must have one dimension, but the shape is {shape}.\n"
            "What follows what could not be known. Give it one after the other, as array.reshape(-1)."
        )


def _same_dtype(what: Any, found: np.dtype[Any], given: np.dtype[Any] | None) -> None:
    if given is not None and given != found:
        raise ConfigurationError(
            f"dtype={given} was given, but {what} says {found}.\nOther tokens would be read. Leave dtype out."
        )


def _refuse_formats(path: Place, given: Any, dtype: np.dtype[Any] | None, files: Files) -> None:
    """Refuse a file that says that it is something else: by its first bytes, or its name."""
    head = beginning(path, files, 8)
    kind = next((kind for magic, kind in _MAGICS.items() if head.startswith(magic)), None)
    suffix = Path(given).suffix
    if kind is None and (dtype is not None or suffix == ".bin"):
        return
    is_none = f"is {kind}, and no .bin of nothing but tokens" if kind else f"has the suffix {suffix!r}, and not .bin"
    raise ConfigurationError(
        f"{path} {is_none}.\nAll of its bytes would be read as tokens. Give a .npy under that name, a .bin, or an "
        "array; or dtype=, if the file has tokens and nothing else."
    )


def _refuse_other_formats(tokens: TokenSource) -> None:
    """Refuse a file that is not of `uint16` by its looks, where no dtype was given."""
    first = tokens.read(0, _SEEN)
    if len(first) > 1 and first[0] + (first[1] << 16) == _LLM_C:
        raise ConfigurationError(
            f"{tokens.name} begins with the header of llm.c.\nIt would be read as tokens. Write the tokens without it: "
            "numpy.save(path, numpy.fromfile(file, 'uint16', offset=1024))."
        )
    pairs = first[: len(first) // 2 * 2].reshape(-1, 2)
    if len(pairs) >= _HIGH and pairs[:, 1].max() < _HIGH and pairs[:, 0].max() >= _HIGH:
        raise ConfigurationError(
            f"{tokens.name} looks like tokens of 32 bits: every second number of 16 bits is below {_HIGH}.\n"
            "As uint16, each token would be read as two. Give dtype=numpy.uint32; or dtype=numpy.uint16, if that is "
            "what it has."
        )
