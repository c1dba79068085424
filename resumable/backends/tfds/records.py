"""Readers of records by number, for each file format. Each process opens its own files; dropping a file closes it."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
import tempfile
import threading
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from resumable._distribution import pip_install
from resumable.backends.tfds import forks
from resumable.errors import DataError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from resumable.backends.tfds.layout import Layout, Run


__all__ = ["ArrayRecords", "TFRecordFile", "TFRecords", "build_index", "default_folder", "find_index", "masked_crc"]


_OPEN_FILES = 256  # at most; systems allow about 1000 per process, and some datasets have more shards
_HEADER, _FOOTER = 12, 4
_HINT = "Its samples could not be distinguished. Copy the file again from its source, or prepare the data again."
_length = struct.Struct("<Q").unpack_from
_checksum = struct.Struct("<I").unpack_from
_MAGIC = b"resumable-tfrecord-index-1\n"
_HEAD = 4  # hash of the path, size, time, and checksum


class TFRecords:
    """Records of TFRecord files.

    Args:
        layout: of the split.
        index_folder: folder for the indices of the files; None to keep them in memory.
        verify: compare the checksum of each record that is read.
    """

    def __init__(self, layout: Layout, index_folder: Path | None, *, verify: bool) -> None:
        self._layout, self._folder, self._verify = layout, index_folder, verify
        self._indices: dict[str, Any] = {}
        self._lock, self._process = threading.Lock(), os.getpid()
        self._open = lru_cache(_OPEN_FILES)(self._open_file)  # a dropped file is closed after its last read

    def __getstate__(self) -> dict[str, Any]:
        return {"layout": self._layout, "index_folder": self._folder, "verify": self._verify}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # opened again in the reading process

    def __getitem__(self, index: int) -> bytes:
        run, record = self._layout.locate(index)
        return self._open(run).read(record)

    def build_index(self, run: Run) -> int:
        """Find or build the index of a run's file; return the number of records."""
        if self._process != os.getpid():  # forked, perhaps while a thread held the lock, and without that thread
            self._lock, self._process = threading.Lock(), os.getpid()
        with self._lock:
            index = self._indices.get(run.path)
            if index is None:
                index = self._indices[run.path] = find_index(run.path, self._folder)
        if len(index) - 1 != run.total:
            raise DataError(
                f"the file {run.path} has {len(index) - 1} records, but dataset_info.json says {run.total}.\n"
                "The wrong samples would be read. Copy the files again, or prepare the data again."
            )
        return run.total

    def _open_file(self, run: Run) -> TFRecordFile:
        self.build_index(run)
        return TFRecordFile(run.path, self._indices[run.path], verify=self._verify)


class ArrayRecords:
    """Records of array_record files, read with the data source of that package.

    Args:
        layout: of the split.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._source: Any = None
        self._process = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"layout": self._layout}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # opened again in the reading process

    def __getitem__(self, index: int) -> bytes:
        forks.check_threads()
        if self._source is None or self._process != os.getpid():
            self._source, self._process = self._open(), os.getpid()
        data: bytes = self._source[index]
        return data

    def _open(self) -> Any:
        from array_record.python.array_record_data_source import ArrayRecordDataSource  # noqa: PLC0415  # only here

        return ArrayRecordDataSource([f"{run.path}[{run.first}:{run.first + run.taken}]" for run in self._layout.runs])


class TFRecordFile:
    """An open TFRecord file that is read by record number, by any number of threads and forked processes.

    A record is its length (8 bytes), a checksum of the length (4), the data, and a checksum of the data (4). The
    lengths must be followed once from the first record to the last, and the checksum of each is verified on the way.

    Args:
        path: of the file.
        index: the result of `build_index`.
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
            DataError: the file is corrupt, or changed since the index was built.
        """
        begin, end = self._index[record : record + 2].tolist()
        whole = os.pread(self._descriptor, end - begin, begin)
        if len(whole) != end - begin or _length(whole)[0] != end - begin - _HEADER - _FOOTER:
            _refuse(
                self._path,
                record,
                "is not at its position in the index",
                "the file was changed or truncated after it was opened",
            )
        data = whole[_HEADER:-_FOOTER]
        if self._verify and masked_crc(data) != _checksum(whole, len(whole) - _FOOTER)[0]:
            _refuse(self._path, record, "is corrupt", "the checksum of its data is wrong")
        return data


def build_index(path: str) -> NDArray[np.int64]:
    """Return the start of each record in a file, and the end of the last one; shape `(records + 1,)`.

    Raises:
        DataError: the file is truncated or corrupt; the message shows the record.
    """
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return np.zeros(1, np.int64)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if hasattr(data, "madvise"):
                data.madvise(mmap.MADV_RANDOM)  # the lengths are far apart, and the bytes in between are not needed
            index = np.array(_follow(path, data, size), np.int64)
    if index[-1] != size:
        _refuse(path, len(index) - 2, "is truncated", f"it ends at byte {index[-1]}, but the file at byte {size}")
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
        begins.append(begin + _HEADER)  # of an incomplete header
    begins[-1] = min(begins[-1], 1 << 62)  # no file is this long, and larger numbers would overflow in NumPy
    return begins


def _refuse(path: str, record: int, what: str, where: str) -> NoReturn:
    raise DataError(f"record {record} of the file {path} {what}: {where}.\n{_HINT}")


def masked_crc(data: bytes) -> int:
    """Compute CRC-32C in the form of TFRecord: rotated, with a constant added.

    Raises:
        MissingDependencyError: google-crc32c is not installed.
    """
    return _mask(_crc32c()(data))


def _mask(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@cache
def _crc32c() -> Callable[[bytes], int]:
    try:
        import google_crc32c  # noqa: PLC0415  # files of array_record do not need it
    except ImportError as error:
        raise MissingDependencyError(
            f"the checksums of TFRecord files need the package google-crc32c, which failed to import: {error}.\n"
            f"Install it: {pip_install('tfds')}"
        ) from error
    value: Callable[[bytes], int] = google_crc32c.value
    return value


def default_folder() -> Path:
    """Return the folder for the indices: in `XDG_CACHE_HOME`, or `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "resumable", "tfrecord-index")


def find_index(path: str, folder: Path | None) -> NDArray[np.int64]:
    """Load the index of a file's records, or build and save it.

    An index is rebuilt if it is damaged, or if the size or time of the file has changed. If the folder cannot be
    written to, the index is kept in memory only.

    Args:
        path: of the TFRecord file.
        folder: folder for the indices; None to keep none.
    """
    if folder is None:
        return build_index(path)
    absolute, status = os.path.abspath(path), os.stat(path)  # noqa: PTH100, PTH116  # resolve() would follow links
    key = [_hash(absolute.encode()), status.st_size, status.st_mtime_ns]
    file = folder / f"{hashlib.blake2b(absolute.encode(), digest_size=16).hexdigest()}.index"
    index = _load(file, key)
    if index is None:
        index = build_index(path)
        with contextlib.suppress(OSError):
            _save(file, key, index)
    return index


def _load(file: Path, key: list[int]) -> NDArray[np.int64] | None:
    try:
        content = file.read_bytes()
    except OSError:
        return None
    values = content.removeprefix(_MAGIC)
    if values is content or len(values) % 8 or len(values) < 8 * (_HEAD + 1):
        return None
    stored = np.frombuffer(values, "<i8").astype(np.int64)
    index: NDArray[np.int64] = stored[_HEAD:]
    return index if stored[:_HEAD].tolist() == [*key, _hash(index.tobytes())] else None


def _save(file: Path, key: list[int], index: NDArray[np.int64]) -> None:
    """Write a file that gets its name only once it is complete, as other processes may write it at the same time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    head = np.array([*key, _hash(index.tobytes())], np.int64)
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as temporary:
        try:
            temporary.write(_MAGIC + np.concatenate([head, index]).astype("<i8").tobytes())
            temporary.close()
            Path(temporary.name).replace(file)
        except BaseException:
            Path(temporary.name).unlink(missing_ok=True)
            raise


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=7).digest(), "little")
