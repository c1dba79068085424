"""Tokens: files of tokens as samples of equal length."""

from __future__ import annotations

import io
import operator
import os
import struct
import tarfile
import zlib
from contextlib import suppress
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable.errors import ConfigurationError
from resumable.samplers.base import check_length
from resumable.sources._files import Files, find_files
from resumable.sources._integers import (
    Array,
    Joined,
    Ranged,
    beginning,
    beside,
    existing,
    open_integers,
    places_of,
    size_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import DTypeLike

    from resumable._randomness.keyed import IntArray
    from resumable.sources._integers import Place, TokenSource


__all__ = ["Span", "Tokens", "index_of", "lengths_of", "open_tokens", "open_vector", "several"]


class Tokens:
    """Files of tokens as samples `(input, target)`; for `wrap`, a `DataLoader`, or use on its own.

    The input of sample `i` has the tokens `i * length` to `(i + 1) * length - 1`. The target is one token ahead.
    Both have the shape `(length,)` and are 64-bit integers, so computations in a model do not overflow. Each process
    maps a local file into memory. In a remote file, a sample is one range, and the samples of a batch are requested at
    the same time.

    Args:
        tokens: path or URL of a `.npy`, of a `.bin` with only tokens (as in nanoGPT) or with a header of llm.c or
            lit-gpt, or of a Megatron `.bin` next to its `.idx`; or an array of integers of shape `(n,)`. A list of
            files, or a pattern with `{000..099}`, `*` or `?`, is read as if they were one file.
        length: tokens per sample.
        dtype: dtype of a file with only tokens. None means `uint16` for a `.bin`.
        storage_options: for the filesystem of a URL, as in fsspec.

    Raises:
        ConfigurationError: the format is different, the dtype does not match, the file is truncated, or there are too
            few tokens.
        DataError: while reading, if the file was rewritten since it was opened, or the storage fails.
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
                f"{self._tokens.name} has {self._tokens.count} tokens, but a sample needs {self._length + 1}: "
                f"length={self._length} and one more for the target.\nUse a smaller length."
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
            raise IndexError(f"sample {number} does not exist: the samples are 0..{self._samples - 1}")
        return number

    def _span(self, number: int) -> tuple[int, int]:
        return number * self._length, (number + 1) * self._length + 1

    def resumable_prefetch(self, indices: Sequence[int], upcoming: Callable[[], Any]) -> None:
        """Read the next samples from a remote file at the same time; see `protocols.Prefetching`."""
        del upcoming
        if isinstance(self._tokens, (Ranged, Joined)):
            self._tokens.hold(self._span(operator.index(index)) for index in indices)

    def locate(self, indices: Iterable[int]) -> list[Span]:
        """Return the token ranges of samples, for example of `Loader.sample_indices`, without reading them."""
        return [self._located(*self._span(self._checked(index))) for index in indices]

    def _located(self, start: int, stop: int) -> Span:
        tokens = self._tokens
        name, first = tokens.place(start, stop - 1) if isinstance(tokens, Joined) else (tokens.name, start)
        return Span(name, first, first + stop - 1 - start)

    def fingerprint(self) -> str:
        """Return a text that identifies the samples: the file's name and size, a digest of tokens, and `length`."""
        return f"{self._tokens.digest()} length={self._length}"

    def __repr__(self) -> str:
        return f"Tokens({self._tokens.name!r}, {self._length})"


class Span(NamedTuple):
    """The input of a sample: the tokens `start..stop-1` of a file."""

    file: str
    start: int
    stop: int

    def __str__(self) -> str:
        return f"tokens {self.start}..{self.stop - 1} of {self.file}"


# ---------------------------------------------------------------------- opening files and arrays of tokens

_SEEN = 4096
_NUMPY = b"\x93NUMPY"
_MAGICS = {
    _NUMPY: "a .npy file",
    b"MMIDIDX\x00": "a Megatron index",
    b"TNTIDX": "a Megatron index of an older format",
    b"\xfd7zXZ\x00": "a compressed file (xz)",
    b"\x28\xb5\x2f\xfd": "a compressed file (zstd)",
    b"\x04\x22\x4d\x18": "a compressed file (lz4)",
    b"LZIP\x01": "a compressed file (lzip)",
    b"\xff\x06\x00\x00sNaPpY": "a compressed file (snappy)",
    b"7z\xbc\xaf\x27\x1c": "an archive (7z)",
    b"Rar!\x1a\x07": "an archive (rar)",
    b"PAR1": "a Parquet file",
    b"PARE": "an encrypted Parquet file",
    b"ARROW1": "an Arrow file",
    b"\x89HDF\r\n": "an HDF5 file",
    b"SQLite format 3": "an SQLite database",
}
_NPY = 1 << 14  # bytes that include the header of a vector
_HIGH = 16  # high words of 32-bit tokens are smaller: a vocabulary has less than 2**20 tokens


def open_tokens(tokens: Any, dtype: DTypeLike | None, files: Files) -> TokenSource:
    """Open tokens for reading; see `Tokens` for the arguments.

    Raises:
        ConfigurationError: the format is different, the dtype or the size does not match, or the file is empty.
    """
    wanted = None if dtype is None else np.dtype(dtype)
    parts = [_open_tokens(one, wanted, files) for one in several(tokens, files) or [tokens]]
    empty = next((part for part in parts if not part.count), None)
    if empty is not None:
        raise ConfigurationError(f"{empty.name} has no tokens.\nCheck the program that wrote it.")
    return parts[0] if len(parts) == 1 else Joined(parts)


def several(given: Any, files: Files) -> list[Any] | None:
    """Return the files of a list or a pattern; None for anything else.

    Raises:
        ConfigurationError: a pattern matches no file, or a file is listed twice.
    """
    paths = isinstance(given, (list, tuple)) and given and all(isinstance(one, (str, os.PathLike)) for one in given)
    pattern = isinstance(given, (str, os.PathLike)) and (has_magic(os.fspath(given)) or "{" in str(given))
    if not paths and not pattern:
        return None
    return list(find_files(given, files, what="token file", suffix=".bin", extra="tars"))


def _open_tokens(tokens: Any, dtype: np.dtype[Any] | None, files: Files) -> TokenSource:
    if not isinstance(tokens, (str, os.PathLike)):
        return open_vector(tokens, "tokens", files, dtype)
    path = existing(tokens, files)
    index = index_of(tokens, files)
    if index is not None:
        said = dtype_of(index, files)
        _same_dtype(path, said, dtype)
        return open_integers(path, files, said)
    head = beginning(path, files, _HEAD)
    if Path(tokens).suffix == ".npy" and (dtype is None or head.startswith(_NUMPY)):
        return open_vector(tokens, "tokens", files, dtype)
    if (layout := _llm_c(head, path, files) or _lit_gpt(head, path, files)) is not None:
        _same_dtype(path, _whole(layout.dtype, str(path)), dtype)
        return open_integers(path, files, *layout)
    _refuse_formats(path, head, tokens, dtype)
    found = open_integers(path, files, _whole(dtype or np.dtype("<u2"), str(path)))
    if dtype is None and found.count:
        _refuse_other_formats(found)
    return found


# ---------------------------------------------------------------------- headers and other formats

_HEAD = 1024  # bytes: the header of llm.c, the longest one
_YEARS = range(2023, 2040)
_WORDS = 16  # numbers that a header of llm.c may have; the rest are 0
_LIT_GPT = struct.Struct("<7sQBQ")  # magic, version, type, number of tokens
_LIT_GPT_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f4", 7: "<f8", 8: "<u2"}


class _Layout(NamedTuple):
    """The place of the tokens in a file with a header."""

    dtype: np.dtype[Any]
    offset: int
    tokens: int


def _llm_c(head: bytes, path: Place, files: Files) -> _Layout | None:
    """Return what a header of llm.c says: 256 32-bit numbers, the first a date, the third the number of tokens."""
    if len(head) < _HEAD:
        return None
    numbers = np.frombuffer(head, "<i4")
    date, count = int(numbers[0]), int(numbers[2])
    if date // 10_000 not in _YEARS or date // 100 % 100 not in range(1, 13) or numbers[_WORDS:].any():
        return None
    stored = size_of(path, files) - _HEAD
    for dtype in ("<u2", "<u4"):
        if stored == count * np.dtype(dtype).itemsize:
            return _Layout(np.dtype(dtype), _HEAD, count)
    raise _other_size(path, f"llm.c ({date})", f"{count} tokens of 16 or 32 bits", stored)


def _lit_gpt(head: bytes, path: Place, files: Files) -> _Layout | None:
    """Return what a header of lit-gpt's `PackedDataset` says, as in TinyLlama."""
    if not head.startswith(b"LITPKDS") or len(head) < _LIT_GPT.size:
        return None
    _, version, code, count = _LIT_GPT.unpack_from(head)
    dtype, stored = np.dtype(_LIT_GPT_TYPES.get(code, "V1")), size_of(path, files) - _LIT_GPT.size
    if version != 1 or stored != count * dtype.itemsize:
        raise _other_size(path, f"lit-gpt (version {version})", f"{count} tokens of {dtype}", stored)
    return _Layout(dtype, _LIT_GPT.size, count)


def _other_size(path: Place, whose: str, said: str, stored: int) -> ConfigurationError:
    return ConfigurationError(
        f"{path} starts with a header of {whose}, but it is truncated or not a file of tokens.\n"
        f"  in the header: {said}\n  after it:      {stored} bytes\nWrong tokens would be read. Write the file again."
    )


def _kind_of(head: bytes) -> str:
    """Return which other format the first bytes of a file have; empty if none. Short magics need a valid header."""
    while head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5:  # noqa: PLR2004  # zstd: a frame to skip
        head = head[8 + int.from_bytes(head[4:8], "little") :]
    method, power = int.from_bytes(head[8:10], "little"), int.from_bytes(head[1:5], "little")
    zipped = head[:3] == b"PK\x03" and head[4:5] < b"\x40" and method in range(100)
    found = {
        "a compressed file (gzip)": head[:3] == b"\x1f\x8b\x08" and _inflates(head),
        "a compressed file (bzip2)": head[:3] == b"BZh" and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90"),
        "a compressed file (lzma)": head[:1] == b"\x5d" and power.bit_count() == 1 and head[5:13] == b"\xff" * 8,
        "a zip archive, such as .npz or the output of torch.save": zipped or head[:4] == b"PK\x05\x06",
        "a tar archive": _is_tar(head),
        **{kind: head.startswith(magic) for magic, kind in _MAGICS.items()},
    }
    return next((kind for kind, there in found.items() if there), "")


def _inflates(head: bytes) -> bool:
    with suppress(zlib.error):
        zlib.decompressobj(31).decompress(head)
        return True
    return False


def _is_tar(head: bytes) -> bool:
    with suppress(tarfile.HeaderError):
        tarfile.TarInfo.frombuf(head[:512], "ascii", "surrogateescape")  # compares its checksum
        return True
    return False


def open_vector(values: Any, what: str, files: Files, dtype: np.dtype[Any] | None = None) -> TokenSource:
    """Open a `.npy` file or an array of integers with shape `(n,)`.

    Raises:
        ConfigurationError: the format is different, the dtype or the shape does not match, or the file is truncated.
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
            f"{path} is not a .npy file, or its header is truncated: {error}.\n"
            "Write it with numpy.save. If it has only tokens and no header, as dolma writes them, pass dtype=."
        ) from error


def _whole(dtype: np.dtype[Any], what: str) -> np.dtype[Any]:
    if dtype.kind not in "iu" or dtype == np.uint64:
        raise ConfigurationError(
            f"{what} must have an integer dtype of at most 63 bits, but it has {dtype}.\n"
            "Tokens and lengths would not be exact. Store them as integers, such as uint16, uint32 or int64."
        )
    return dtype


def _check_shape(shape: tuple[int, ...], what: str) -> None:
    if len(shape) != 1:
        raise ConfigurationError(
            f"{what} must have one dimension, but the shape is {shape}.\n"
            "The order of the values is unknown. Flatten the array, for example with array.reshape(-1)."
        )


def _same_dtype(what: Any, found: np.dtype[Any], given: np.dtype[Any] | None) -> None:
    if given is not None and given != found:
        raise ConfigurationError(
            f"dtype={given} was passed, but the dtype of {what} is {found}.\nWrong tokens would be read. Remove dtype."
        )


def _refuse_formats(path: Place, head: bytes, given: Any, dtype: np.dtype[Any] | None) -> None:
    """Raise an error if the first bytes of a file show a different format, or nothing shows that it has tokens."""
    kind, suffix = _kind_of(head), Path(given).suffix
    if not kind and (dtype is not None or suffix == ".bin"):
        return
    found, fix = f"is {kind}, not a .bin file of tokens", "Extract or convert it, and pass a .npy file or a .bin file."
    if not kind:
        found = f"has the extension {suffix!r}, not .npy or .bin"
        fix = "Pass a .npy file, a .bin file or an array. If the file has only tokens, pass dtype=."
    raise ConfigurationError(f"{path} {found}.\nAll of its bytes would be read as tokens. {fix}")


def _refuse_other_formats(tokens: TokenSource) -> None:
    """Raise an error if a file does not look like `uint16` tokens. Called only if no dtype was passed."""
    first = tokens.read(0, _SEEN)
    pairs = first[: len(first) // 2 * 2].reshape(-1, 2)
    if len(pairs) >= _HIGH and pairs[:, 1].max() < _HIGH and pairs[:, 0].max() >= _HIGH:
        raise ConfigurationError(
            f"{tokens.name} seems to have 32-bit tokens: every second 16-bit number is below {_HIGH}.\n"
            "As uint16, each token would be read as two. Pass dtype=numpy.uint32; or dtype=numpy.uint16 if the tokens "
            "do have 16 bits."
        )


# ---------------------------------------------------------------------- Megatron's index of its tokens

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = 34  # bytes: magic, version, type, and the numbers of sequences and documents
_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_AT_ONCE = 1 << 22  # documents


def index_of(tokens: Any, files: Files) -> Place | None:
    """Return Megatron's index of a `.bin` file; None if there is none."""
    if not isinstance(tokens, (str, os.PathLike)) or Path(tokens).suffix != ".bin":
        return None
    return beside(existing(tokens, files), ".idx", files)


def dtype_of(index: Place, files: Files) -> np.dtype[Any]:
    """Return the dtype of the tokens.

    Raises:
        ConfigurationError: the index is truncated, or does not belong to its `.bin`.
    """
    _open_index(index, files)
    return _header(index, files)[0]


def _header(index: Place, files: Files) -> tuple[np.dtype[Any], int, int]:
    head = beginning(index, files, _HEADER)
    code = head[17] if len(head) == _HEADER else -1
    if head[:9] != _MAGIC or int.from_bytes(head[9:17], "little") != 1 or code not in _TYPES:
        raise ConfigurationError(
            f"{index} is not a Megatron index of version 1 with integer tokens.\n"
            "The documents' boundaries are unknown. If the file is not an index of the .bin file, rename or remove it."
        )
    return np.dtype(_TYPES[code]), int.from_bytes(head[18:26], "little"), int.from_bytes(head[26:34], "little")


def _open_index(index: Place, files: Files) -> tuple[TokenSource, TokenSource]:
    """Return the length of each sequence and the first sequence of each document, after checking the index."""
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
            f"{index} does not belong to its tokens.\n"
            f"  end of the tokens in the index: byte {end}\n  size of {tokens}: {size} bytes\n"
            "One of the two files was truncated or rewritten, so wrong tokens would be read. Create both again."
        )
    if not _in_turn(lengths, pointers, dtype.itemsize):
        raise ConfigurationError(
            f"the sequences in {index} are not stored one after the other in {tokens}.\n"
            "Documents would get tokens of other documents. Write both files again, in the order of the sequences."
        )
    return lengths, borders


def _in_turn(lengths: TokenSource, pointers: TokenSource, size: int) -> bool:
    """Return whether each sequence starts at the end of the previous one. Only some of them are checked."""
    for start, stop in places_of(lengths.count):
        at = pointers.read(start, stop)
        if (start == 0 and at[:1].any()) or (np.diff(at) != size * lengths.read(start, stop)[:-1]).any():
            return False
    return True


def lengths_of(index: Place, files: Files) -> TokenSource:
    """Return the lengths of the documents in a Megatron index. They stay in the file if each document is one sequence.

    Raises:
        ConfigurationError: the index is truncated, does not belong to its `.bin`, or has sequences outside documents.
    """
    lengths, borders = _open_index(index, files)
    steps = range(0, borders.count, _AT_ONCE)
    if borders.count == lengths.count + 1 and all(_numbers(borders, first) for first in steps):
        return lengths
    begins = borders.read(0, borders.count)
    if not len(begins) or begins[0] != 0 or begins[-1] != lengths.count or (np.diff(begins) < 0).any():
        raise ConfigurationError(
            f"the documents in {index} do not cover its {lengths.count} sequences in order.\n"
            "Documents would start at wrong tokens. Create the index again, or pass documents= and a .bin without an "
            "index."
        )
    ends = np.concatenate([[0], np.cumsum(lengths.read(0, lengths.count))])
    return Array(np.diff(ends[begins]))


def _numbers(borders: TokenSource, first: int) -> bool:
    part = borders.read(first, first + _AT_ONCE)
    return np.array_equal(part, np.arange(first, first + len(part)))
