"""Indices of TFRecord files, kept in files of their own, so that each is built once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from resumable.backends.tfds.tfrecord import build_index

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["default_folder", "find_index"]

_MAGIC = b"resumable-tfrecord-index-1\n"
_HEAD = 4  # path's hash, size, time, and checksum


def default_folder() -> Path:
    """Return the folder for the indices: below `XDG_CACHE_HOME`, or `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "resumable", "tfrecord-index")


def find_index(path: str, folder: Path | None) -> NDArray[np.int64]:
    """Load the index of a file, or build it and keep it.

    One that belongs to a file of another size or time, or is damaged, is rebuilt. Where the folder cannot be written
    to, the index is kept in memory only.

    Args:
        path: of the TFRecord file.
        folder: where indices are kept; None: nowhere.
    """
    if folder is None:
        return build_index(path)
    absolute, status = os.path.abspath(path), os.stat(path)  # noqa: PTH100, PTH116  # resolve() would follow links
    key = [_number(absolute.encode()), status.st_size, status.st_mtime_ns]
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
    return index if stored[:_HEAD].tolist() == [*key, _number(index.tobytes())] else None


def _save(file: Path, key: list[int], index: NDArray[np.int64]) -> None:
    """Write a file that has its name only once it is whole: other processes may be at the same."""
    file.parent.mkdir(parents=True, exist_ok=True)
    head = np.array([*key, _number(index.tobytes())], np.int64)
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as temporary:
        try:
            temporary.write(_MAGIC + np.concatenate([head, index]).astype("<i8").tobytes())
            temporary.close()
            Path(temporary.name).replace(file)
        except BaseException:
            Path(temporary.name).unlink(missing_ok=True)
            raise


def _number(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=7).digest(), "little")
