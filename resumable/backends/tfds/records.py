"""Readers of records by number, for each file format; opened in the process that reads, and closed by being dropped."""

from __future__ import annotations

import os
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from resumable.backends.tfds import forks
from resumable.backends.tfds.index_cache import find_index
from resumable.backends.tfds.tfrecord import TFRecordFile
from resumable.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

    from resumable.backends.tfds.layout import Layout, Run

__all__ = ["ArrayRecords", "TFRecords"]

_OPEN_FILES = 256  # at most; systems allow a process about 1000, and some datasets have more shards


class TFRecords:
    """Records of TFRecord files.

    Args:
        layout: of the split.
        index_folder: where the indices of the files are kept; None: in memory.
        verify: compare the checksum of each record that is read.
    """

    def __init__(self, layout: Layout, index_folder: Path | None, *, verify: bool) -> None:
        self._layout, self._folder, self._verify = layout, index_folder, verify
        self._indices: dict[str, Any] = {}
        self._lock, self._process = threading.Lock(), os.getpid()
        self._open = lru_cache(_OPEN_FILES)(self._open_file)  # a file that is dropped is closed after its last read

    def __getstate__(self) -> dict[str, Any]:
        return {"layout": self._layout, "index_folder": self._folder, "verify": self._verify}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # opened again in the process that reads

    def __getitem__(self, index: int) -> bytes:
        run, record = self._layout.locate(index)
        return self._open(run).read(record)

    def build_index(self, run: Run) -> int:
        """Find the index of a run's file, or make it; return the number of records."""
        if self._process != os.getpid():  # forked, perhaps while a thread had the lock, and without that thread
            self._lock, self._process = threading.Lock(), os.getpid()
        with self._lock:
            index = self._indices.get(run.path)
            if index is None:
                index = self._indices[run.path] = find_index(run.path, self._folder)
        if len(index) - 1 != run.total:
            raise DataError(
                f"the file {run.path} has {len(index) - 1} records, but dataset_info.json says {run.total}.\n"
                "Other samples would be read than those that were asked for. Copy the files again, or prepare the data "
                "again."
            )
        return run.total

    def _open_file(self, run: Run) -> TFRecordFile:
        self.build_index(run)
        return TFRecordFile(run.path, self._indices[run.path], verify=self._verify)


class ArrayRecords:
    """Records of array_record files, by the data source of that package.

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
        self.__init__(**state)  # type: ignore[misc]  # opened again in the process that reads

    def __getitem__(self, index: int) -> bytes:
        forks.check_threads()
        if self._source is None or self._process != os.getpid():
            self._source, self._process = self._open(), os.getpid()
        data: bytes = self._source[index]
        return data

    def _open(self) -> Any:
        from array_record.python.array_record_data_source import ArrayRecordDataSource  # noqa: PLC0415  # only here

        return ArrayRecordDataSource([f"{run.path}[{run.first}:{run.first + run.taken}]" for run in self._layout.runs])
