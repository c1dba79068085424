"""Random access to a TFRecord file, by an index of where its records begin. TensorFlow is not needed for it.

A record is its length (8 bytes), a checksum of the length (4), the data, and a checksum of the data (4). The lengths
have to be followed from the first record to the last, once; the checksum of each is verified on the way.
"""

from __future__ import annotations

import mmap
import os
import struct
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from resumable._distribution import pip_install
from resumable.errors import DataError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["TFRecordFile", "build_index", "masked_crc"]

_HEADER, _FOOTER = 12, 4
_HINT = "Its samples could not be told apart. Copy the file again from where it came from, or prepare the data again."
_length = struct.Struct("<Q").unpack_from
_checksum = struct.Struct("<I").unpack_from


def masked_crc(data: bytes) -> int:
    """Compute CRC-32C as TFRecord stores it: rotated, and with a constant added.

    Raises:
        MissingDependencyError: google-crc32c is not installed.
    """
    return _mask(_crc32c()(data))


def _mask(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@cache
def _crc32c() -> Callable[[bytes], int]:
    try:
        import google_crc32c  # noqa: PLC0415  # files of array_record are read without it
    except ImportError as error:
        raise MissingDependencyError(
            f"the checksums of TFRecord files need the package google-crc32c, which failed to import: {error}.\n"
            f"Install it: {pip_install('tfds')}"
        ) from error
    value: Callable[[bytes], int] = google_crc32c.value
    return value


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
            index = np.array(_follow(path, data, size), np.int64)
    if index[-1] != size:
        _refuse(path, len(index) - 2, "is truncated", f"it ends at byte {index[-1]}, and the file at byte {size}")
    return index


def _follow(path: str, data: mmap.mmap, size: int) -> list[int]:
    begin, begins = 0, [0]
    last, crc32c = size - _HEADER, _crc32c()
    while begin <= last:
        header = data[begin : begin + _HEADER]
        if _mask(crc32c(header[:8])) != _checksum(header, 8)[0]:
            where = f"the checksum of its length, at byte {begin}, is wrong"
            _refuse(path, len(begins) - 1, "is corrupt", where)
        begin += _length(header)[0] + _HEADER + _FOOTER
        begins.append(begin)
    if begin < size:
        begins.append(begin + _HEADER)  # of a header that is not whole
    begins[-1] = min(begins[-1], 1 << 62)  # no file is as long, and NumPy's numbers end soon after
    return begins


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
