"""Random access to a TFRecord file, by an index of where its records begin. TensorFlow is not needed for it.

A record is its length (8 bytes), a checksum of the length (4), the data, and a checksum of the data (4). The lengths
have to be followed from the first record to the last, once; the checksums of all lengths are then verified at once.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from resumable.backends.tfds.crc import masked_crc, masked_crcs
from resumable.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["TFRecordFile", "build_index"]

_HEADER, _FOOTER = 12, 4
_HINT = "Its samples could not be told apart. Copy the file again from where it came from, or prepare the data again."
_length = struct.Struct("<Q").unpack_from
_checksum = struct.Struct("<I").unpack_from


def build_index(path: str) -> NDArray[np.int64]:
    """Find where the records of a file begin, and where the last one ends; shape `(records + 1,)`.

    Raises:
        DataError: the file is truncated or corrupt; the message names the record.
    """
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return np.zeros(1, np.int64)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if hasattr(data, "madvise"):
                data.madvise(mmap.MADV_RANDOM)  # the lengths are far apart, and what is between them is not needed
            index = np.array(_follow(data, size), np.int64)
            _verify_lengths(path, data, index)
    if index[-1] != size:
        _refuse(path, len(index) - 2, "is truncated", f"it ends at byte {index[-1]}, and the file at byte {size}")
    return index


def _follow(data: mmap.mmap, size: int) -> list[int]:
    begin, begins = 0, [0]
    last = size - _HEADER
    while begin <= last:
        begin += _length(data, begin)[0] + _HEADER + _FOOTER
        begins.append(begin)
    if begin < size:
        begins.append(begin + _HEADER)  # of a header that is not whole
    begins[-1] = min(begins[-1], 1 << 62)  # a corrupt length
    return begins


def _verify_lengths(path: str, data: mmap.mmap, index: NDArray[np.int64]) -> None:
    begins = index[:-1][index[:-1] + _HEADER <= len(data)]
    if not len(begins):
        return
    everything = np.frombuffer(data, np.uint8)
    headers = everything[begins[:, None] + np.arange(_HEADER)]
    del everything  # a map that is looked at cannot be closed
    stored = headers[:, 8:].copy().view("<u4")[:, 0]
    wrong = np.flatnonzero(masked_crcs(headers[:, :8]) != stored)
    if len(wrong):
        where = f"the checksum of its length, at byte {begins[wrong[0]]}, is wrong"
        _refuse(path, int(wrong[0]), "is corrupt", where)


def _refuse(path: str, record: int, what: str, where: str) -> NoReturn:
    raise DataError(f"record {record} of the file {path} {what}: {where}.\n{_HINT}")


class TFRecordFile:
    """An open file, from which records are read by their number; any number of threads and forked processes may.

    Args:
        path: of the file.
        index: what `build_index` returned.
        verify: compare the checksum of each record that is read.
    """

    def __init__(self, path: str, index: NDArray[np.int64], *, verify: bool) -> None:
        self._path, self._index, self._verify = path, index, verify
        self._descriptor = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def read(self, record: int) -> bytes:
        """Read a record.

        Raises:
            DataError: the file is not what it was when the index was made, or corrupt.
        """
        begin, end = self._index[record : record + 2].tolist()
        whole = os.pread(self._descriptor, end - begin, begin)
        if len(whole) != end - begin or _length(whole)[0] != end - begin - _HEADER - _FOOTER:
            _refuse(self._path, record, "is not where it was", "the file was changed or cut off since it was opened")
        data = whole[_HEADER:-_FOOTER]
        if self._verify and masked_crc(data) != _checksum(whole, len(whole) - _FOOTER)[0]:
            _refuse(self._path, record, "is corrupt", "the checksum of its data is wrong")
        return data
