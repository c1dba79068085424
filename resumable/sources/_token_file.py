"""Files of tokens: raw, NumPy's, and Megatron's with an index; mapped into memory, and opened in each process."""

from __future__ import annotations

import hashlib
import operator
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from resumable._randomness.keyed import IntArray

__all__ = ["Array", "Mapped", "Stamp", "TokenSource", "index_of", "lengths_of", "open_tokens", "open_vector"]

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = 34  # magic, version, type, and the numbers of sequences and documents
_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_LLM_C = 20240520
_PLACES, _PLACE = 16, 1024  # what is read of a file to tell it from another one
_SEEN = 4096
_HIGH = 16  # a vocabulary has less than 2**20 tokens


class Stamp(NamedTuple):
    """What changes where a file is written again: its size in bytes, and when it was changed, in nanoseconds."""

    size: int
    changed: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """Return that of a file as it is now."""
        found = os.stat(path)  # noqa: PTH116  # as fast as it gets
        return cls(found.st_size, found.st_mtime_ns)


class Array:
    """Integers in memory.

    Args:
        values: shape `(n,)`.
    """

    def __init__(self, values: NDArray[Any]) -> None:
        self.name, self.values, self.stamp, self.path = "an array", values, None, None
        self.dtype, self.count = values.dtype, len(values)

    def read(self, start: int, stop: int) -> IntArray:
        """Return the values `start..stop-1` as 64-bit integers; a copy."""
        return self.values[start:stop].astype(np.int64)

    def digest(self) -> str:
        """Return what tells the values from others: their number, and some of them."""
        return _digest(self)


class Mapped:
    """Integers of a file, which is mapped when they are first read in a process.

    Args:
        path: of the file.
        dtype: of the integers.
        offset: bytes before the first of them.
        count: how many there are; None: up to the end of the file.

    Raises:
        ConfigurationError: the file has another size than that.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], offset: int = 0, count: int | None = None) -> None:
        self.path, self.name, self.dtype, self._offset = path.resolve(), str(path), dtype, offset
        self.stamp = Stamp.of(path)
        room, rest = divmod(self.stamp.size - offset, dtype.itemsize)
        if count is None and rest:
            raise ConfigurationError(
                f"{path} has {self.stamp.size} bytes, which is no whole number of {dtype} of {dtype.itemsize} bytes.\n"
                "It was cut, or has another dtype, and other tokens would be read. Copy it again, or give its dtype."
            )
        self.count = room if count is None else count
        if room < self.count:
            raise ConfigurationError(
                f"{path} was cut: it has to have {offset + self.count * dtype.itemsize} bytes and has "
                f"{self.stamp.size}.\nIts last values are not there. Copy it again."
            )
        self._values: NDArray[Any] | None = None

    def read(self, start: int, stop: int) -> IntArray:
        """Return the values `start..stop-1` as 64-bit integers; a copy.

        Raises:
            DataError: the file is another one than it was.
        """
        if self._values is None:
            self._values = self._map()
        return self._values[start:stop].astype(np.int64)

    def _map(self) -> NDArray[Any]:
        now = Stamp.of(self.path)
        if now != self.stamp:
            raise DataError(
                f"{self.name} was written again since it was opened.\n  bytes then: {self.stamp.size}\n"
                f"  bytes now:  {now.size}\nOther tokens would be read from here on. Start again with the file as it "
                "is, or put the old one back."
            )
        return np.memmap(self.path, self.dtype, "r", self._offset, (self.count,))

    def digest(self) -> str:
        """Return what tells the file from others: its name, the number of its values, and some of them."""
        return f"{self.path.name} {_digest(self)}"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_values": None}  # the mapping would be pickled as what is in it


TokenSource = Array | Mapped


def _digest(source: TokenSource) -> str:
    state = hashlib.blake2b(digest_size=8, person=b"resumable1")
    last = max(source.count - _PLACE, 0)
    for place in sorted({last * number // (_PLACES - 1) for number in range(_PLACES)}):
        state.update(source.read(place, place + _PLACE).astype("<i8").tobytes())
    return f"{source.count} {source.dtype.str} {state.hexdigest()}"


def open_tokens(tokens: Any, dtype: DTypeLike | None) -> TokenSource:
    """Open tokens for reading.

    Args:
        tokens: path of a `.npy`, of a `.bin` without a header, or of Megatron's `.bin` with its `.idx` beside it; or
            an array of integers of shape `(n,)`.
        dtype: of the tokens of a `.bin`; None: what its index says, or `uint16`.

    Raises:
        ConfigurationError: it is none of them, has another dtype or size than said, or has no tokens.
    """
    found = _open_tokens(tokens, None if dtype is None else np.dtype(dtype))
    if not found.count:
        raise ConfigurationError(f"{found.name} has no tokens.\nThere would be nothing to read. Check what wrote it.")
    return found


def _open_tokens(tokens: Any, dtype: np.dtype[Any] | None) -> TokenSource:
    if not isinstance(tokens, (str, os.PathLike)) or Path(tokens).suffix == ".npy":
        return open_vector(tokens, "tokens", dtype)
    path = _existing(tokens)
    index = index_of(path)
    if index is not None:
        lengths_of(index)  # says where it does not belong to the tokens
        said = _header(index)[0]
        _same_dtype(path, said, dtype)
        return Mapped(path, said)
    found = Mapped(path, _whole(dtype or np.dtype("<u2"), str(path)))
    if dtype is None and found.count:
        _refuse_other_formats(found)
    return found


def open_vector(values: Any, what: str, dtype: np.dtype[Any] | None = None) -> TokenSource:
    """Open a `.npy` or take an array; of integers, shape `(n,)`.

    Raises:
        ConfigurationError: it is none, has another dtype or shape, or was cut.
    """
    if not isinstance(values, (str, os.PathLike)):
        array = np.asarray(values)
        _check_shape(array.shape, what)
        _same_dtype(what, _whole(array.dtype, what), dtype)
        return Array(array)
    path = _existing(values)
    shape, found, offset = _npy_header(path)
    _check_shape(shape, str(path))
    _same_dtype(path, _whole(found, str(path)), dtype)
    return Mapped(path, found, offset, shape[0])


def _npy_header(path: Path) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, found = read(file)
            return shape, found, file.tell()
    except ValueError as error:
        raise ConfigurationError(
            f"{path} is no .npy file, or was cut inside of its header: {error}.\n"
            "Nothing could be read from it. Write it with numpy.save; a file without a header is a .bin."
        ) from error


def _existing(path: Any) -> Path:
    found = Path(path)
    if not found.is_file():
        raise ConfigurationError(
            f"there is no file {found}.\nThere would be nothing to read. Files have to be local: a .npy, a .bin, or "
            "Megatron's .bin and .idx."
        )
    return found


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


def _refuse_other_formats(tokens: Mapped) -> None:
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


def index_of(tokens: Any) -> Path | None:
    """Return the index that Megatron writes beside a `.bin`; None where there is none."""
    if not isinstance(tokens, (str, os.PathLike)) or Path(tokens).suffix != ".bin":
        return None
    index = Path(tokens).with_suffix(".idx")
    return index if index.is_file() else None


def _header(index: Path) -> tuple[np.dtype[Any], int, int]:
    with index.open("rb") as file:
        head = file.read(_HEADER)
    code = head[17] if len(head) == _HEADER else -1
    if head[:9] != _MAGIC or int.from_bytes(head[9:17], "little") != 1 or code not in _TYPES:
        raise ConfigurationError(
            f"{index} is no index of Megatron's, of version 1 and of integers.\n"
            "Where a document begins could not be known. Take it away, if it belongs to something else."
        )
    return np.dtype(_TYPES[code]), int.from_bytes(head[18:26], "little"), int.from_bytes(head[26:34], "little")


def lengths_of(index: Path) -> TokenSource:
    """Return the lengths of the documents in an index of Megatron's.

    Raises:
        ConfigurationError: it was cut, or its sequences do not follow each other.
    """
    dtype, sequences, documents = _header(index)
    lengths = Mapped(index, np.dtype("<i4"), _HEADER, sequences)
    pointers = Mapped(index, np.dtype("<i8"), _HEADER + 4 * sequences, sequences)
    borders = Mapped(index, np.dtype("<i8"), _HEADER + 12 * sequences, documents)
    last = operator.index(lengths.read(sequences - 1, sequences).sum()) if sequences else 0
    end = operator.index(pointers.read(sequences - 1, sequences).sum()) + last * dtype.itemsize
    size = index.with_suffix(".bin").stat().st_size
    if end != size:
        raise ConfigurationError(
            f"{index} says that its tokens end at byte {end}, but {index.with_suffix('.bin')} has {size} bytes.\n"
            "One of them was cut or written again, and other tokens would be read. Make both again."
        )
    if documents == sequences + 1:
        return lengths
    first = borders.read(0, documents)[:-1]
    sums = np.add.reduceat(lengths.read(0, sequences), first, dtype=np.int64)
    return Array(sums)
