"""The identity of a .beton file: what is in it, and not its path or its time, so that copies are the same data."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ffcv.reader import Reader

__all__ = ["describe_fields", "fingerprint", "hash_content", "pages_of_samples"]

_PROBES = 64
_PROBE = 4096
_BLOCK = 1 << 22
_NO_PAGE = -1


def fingerprint(reader: Reader) -> str:
    """Digest a file's header, fields, metadata, allocation table, size, and 64 places of its content.

    The table of contents alone would not tell a file from one that was written with other images of the same size.
    """
    size = os.path.getsize(reader.file_name)  # noqa: PTH202  # FFCV has names
    state = hashlib.blake2b(f"{size}".encode(), digest_size=8, person=b"resumable1")
    for part in (reader.header, reader.field_descriptors, reader.metadata, reader.alloc_table):
        state.update(part.tobytes())
    with Path(reader.file_name).open("rb") as file:
        for place in np.linspace(0, max(size - _PROBE, 0), _PROBES).astype(np.int64).tolist():
            file.seek(place)
            state.update(file.read(_PROBE))
    return state.hexdigest()


def hash_content(name: str) -> str:
    """Digest all bytes of a file: about a second per gigabyte, and the time to read it."""
    state = hashlib.blake2b(digest_size=8, person=b"resumable1")
    with Path(name).open("rb") as file:
        while block := file.read(_BLOCK):
            state.update(block)
    return state.hexdigest()


def describe_fields(reader: Reader) -> str:
    """Name the fields and their types."""
    return ", ".join(f"{name}: {type(handler).__name__}" for name, handler in reader.handlers.items())


def pages_of_samples(reader: Reader) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return on which page of the file each sample is, the first one if there are several; -1 if it has no data."""
    pages = np.full(int(reader.num_samples), _NO_PAGE, np.int64)
    table = reader.alloc_table
    shift = np.uint64(int(reader.page_size).bit_length() - 1)
    pages[table["sample_id"][::-1].astype(np.int64)] = (table["ptr"][::-1] >> shift).astype(np.int64)
    return pages
