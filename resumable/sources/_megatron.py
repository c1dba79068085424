"""The index that Megatron writes beside its tokens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable.errors import ConfigurationError
from resumable.sources._mapped import Array, places_of
from resumable.sources._ranged import beginning, beside, existing, open_integers, size_of

if TYPE_CHECKING:
    from resumable.sources._files import Files
    from resumable.sources._ranged import Place, TokenSource

__all__ = ["dtype_of", "index_of", "lengths_of"]

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
