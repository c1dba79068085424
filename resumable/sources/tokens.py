"""Tokens: a file of tokens, cut into windows of one length."""

from __future__ import annotations

import io
import operator
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable.errors import ConfigurationError
from resumable.samplers.base import check_length
from resumable.sources._files import Files
from resumable.sources._integers import Array, Ranged, beginning, beside, existing, open_integers, places_of, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import DTypeLike

    from resumable._randomness.keyed import IntArray
    from resumable.sources._integers import Place, TokenSource


__all__ = ["Span", "Tokens", "index_of", "lengths_of", "open_tokens", "open_vector"]


# The index that Megatron writes beside its tokens.

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = 34  # magic, version, type, and the numbers of sequences and documents
_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_AT_ONCE = 1 << 22  # documents


def index_of(tokens: Any, files: Files) -> Place | None:
    """Return the index that Megatron writes beside a `.bin`; None where there is none."""
    if not isinstance(tokens, (str, os.PathLike)) or Path(tokens).suffix != ".bin":
        return None
    return beside(existing(tokens, files), ".idx", files)


def dtype_of(index: Place, files: Files) -> np.dtype[Any]:
    """Return the dtype of the tokens.

    Raises:
        ConfigurationError: the index was cut, or does not belong to its `.bin`.
    """
    _open_index(index, files)
    return _header(index, files)[0]


def _header(index: Place, files: Files) -> tuple[np.dtype[Any], int, int]:
    head = beginning(index, files, _HEADER)
    code = head[17] if len(head) == _HEADER else -1
    if head[:9] != _MAGIC or int.from_bytes(head[9:17], "little") != 1 or code not in _TYPES:
        raise ConfigurationError(
            f"{index} is no index of Megatron's, of version 1 and of integers.\n"
            "Where a document begins could not be known. Take it away, if it belongs to something else."
        )
    return np.dtype(_TYPES[code]), int.from_bytes(head[18:26], "little"), int.from_bytes(head[26:34], "little")


def _open_index(index: Place, files: Files) -> tuple[TokenSource, TokenSource]:
    """Return the lengths of the sequences, and which sequence each document begins with, of an index that fits."""
    dtype, sequences, documents = _header(index, files)
    lengths = open_integers(index, files, np.dtype("<i4"), _HEADER, sequences)
    pointers = open_integers(index, files, np.dtype("<i8"), _HEADER + 4 * sequences, sequences)
    borders = open_integers(index, files, np.dtype("<i8"), _HEADER + 12 * sequences, documents)
    last = slice(sequences - 1, sequences) if sequences else slice(0, 0)
    count, at = lengths.read(last.start, last.stop), pointers.read(last.start, last.stop)
    tokens = beside(index, ".bin", files)
    end, size = int(at.sum() + count.sum() * dtype.itemsize), 0 if tokens is None else size_of(tokens, files)
    if end != size:
        raise ConfigurationError(
            f"{index} says that its tokens end at byte {end}, but {tokens} has {size} bytes.\n"
            "One of them was cut or written again, and other tokens would be read. Make both again."
        )
    if not _in_turn(lengths, pointers, dtype.itemsize):
        raise ConfigurationError(
            f"the sequences in {index} do not lie in {tokens} one after the other.\n"
            "Documents would have the tokens of other ones. Write both again, in the order of the sequences."
        )
    return lengths, borders


def _in_turn(lengths: TokenSource, pointers: TokenSource, size: int) -> bool:
    """Return whether each sequence begins where the one before it ends; looked at in some places."""
    for start, stop in places_of(lengths.count):
        at = pointers.read(start, stop)
        if (start == 0 and at[:1].any()) or (np.diff(at) != size * lengths.read(start, stop)[:-1]).any():
            return False
    return True


def lengths_of(index: Place, files: Files) -> TokenSource:
    """Return the lengths of the documents in an index of Megatron's; where each is one sequence, they stay in the file.

    Raises:
        ConfigurationError: it was cut, does not belong to its `.bin`, or its documents are not all of its sequences.
    """
    lengths, borders = _open_index(index, files)
    steps = range(0, borders.count, _AT_ONCE)
    if borders.count == lengths.count + 1 and all(_numbers(borders, first) for first in steps):
        return lengths
    begins = borders.read(0, borders.count)
    if not len(begins) or begins[0] != 0 or begins[-1] != lengths.count or (np.diff(begins) < 0).any():
        raise ConfigurationError(
            f"the documents in {index} are not all of its {lengths.count} sequences, one after the other.\n"
            "Documents would begin in wrong places. Make the index again, or give documents= and a .bin without index."
        )
    ends = np.concatenate([[0], np.cumsum(lengths.read(0, lengths.count))])
    return Array(np.diff(ends[begins]))


def _numbers(borders: TokenSource, first: int) -> bool:
    part = borders.read(first, first + _AT_ONCE)
    return np.array_equal(part, np.arange(first, first + len(part)))


# Opens tokens and lengths: raw files, NumPy's, Megatron's with an index, and arrays; anything else is refused.

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


class Span(NamedTuple):
    """The input of a sample: the tokens `start..stop-1` of a file."""

    file: str
    start: int
    stop: int

    def __str__(self) -> str:
        return f"tokens {self.start}..{self.stop - 1} of {self.file}"


class Tokens:
    """A file of tokens as samples `(input, target)`, one token apart; for `wrap`, a `DataLoader`, or by itself.

    Sample `i` has the tokens `i * length..(i + 1) * length - 1` as input, and as target those that follow each of them.
    Both are of shape `(length,)` and 64-bit integers, so that nothing overflows in what a model computes with them. The
    file is mapped into memory in each process that reads it; of a remote one, a sample is one range, and those of a
    batch are requested at the same time.

    Args:
        tokens: path or URL of a `.npy`, of a `.bin` of nothing but tokens (nanoGPT's), or of Megatron's `.bin` with its
            `.idx` beside it; or an array of integers of shape `(n,)`.
        length: tokens per sample.
        dtype: of the tokens of a `.bin`. None: what its index says, or `uint16`.
        storage_options: for the file system of a URL, as fsspec takes them.

    Raises:
        ConfigurationError: what is no such file, was cut, has another dtype, or has too few tokens.
        DataError: while reading, if the file was written again since it was opened, or storage fails.
    """

    def __init__(
        self,
        tokens: Any,
        length: int,
        *,
        dtype: DTypeLike | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokens = open_tokens(tokens, dtype, Files(storage_options))
        self._length = check_length(length, "the length of a sample")
        self._samples = (self._tokens.count - 1) // self._length
        if not self._samples:
            raise ConfigurationError(
                f"{self._tokens.name} has {self._tokens.count} tokens, but a sample takes {self._length + 1}: its "
                f"{self._length}, and the target of the last.\nThere would be no sample. Give a smaller length."
            )

    def __len__(self) -> int:
        return self._samples

    def __iter__(self) -> Iterator[tuple[IntArray, IntArray]]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> tuple[IntArray, IntArray]:
        window = self._tokens.read(*self._span(self._checked(index)))
        return window[:-1].copy(), window[1:].copy()

    def _checked(self, index: int) -> int:
        number = operator.index(index)
        if not 0 <= number < self._samples:
            raise IndexError(f"there are the samples 0..{self._samples - 1}, so there is no sample {number}")
        return number

    def _span(self, number: int) -> tuple[int, int]:
        return number * self._length, (number + 1) * self._length + 1

    def resumable_prefetch(self, indices: Sequence[int], upcoming: Callable[[], Any]) -> None:
        """Read the windows of a remote file that will be asked for at the same time; see `protocols.Prefetching`."""
        del upcoming
        if isinstance(self._tokens, Ranged):
            self._tokens.hold(self._span(operator.index(index)) for index in indices)

    def locate(self, indices: Iterable[int]) -> list[Span]:
        """Return the tokens of samples, as of those of `Loader.sample_indices`; none is read."""
        spans = [self._span(self._checked(index)) for index in indices]
        return [Span(self._tokens.name, start, stop - 1) for start, stop in spans]

    def fingerprint(self) -> str:
        """Return what tells these samples from others: the file's name, its size, some of its tokens, and `length`."""
        return f"{self._tokens.digest()} length={self._length}"

    def __repr__(self) -> str:
        return f"Tokens({self._tokens.name!r}, {self._length})"
