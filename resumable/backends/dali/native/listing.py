"""Fingerprints of the files behind a reader: names, order and sizes, without reading any sample.

The directory that they lie in does not count, so that data may be copied to another node's disk.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

__all__ = ["fingerprint_files", "is_of_files"]

_LISTS = {"files", "labels"}
_READ = {"file_list", "annotations_file"}  # small text files, which are hashed themselves
_NAMES = _LISTS | _READ | {"file_root", "path", "paths", "index_path", "index_paths", "filenames"}
_BLOCK = 1 << 20


def is_of_files(key: str, value: Any) -> bool:
    """Tell whether an argument of a reader names files."""
    # Path.exists raises for text that is longer than a name may be.
    return key in _NAMES or any(os.path.exists(one) for one in _strings(value)[:1])  # noqa: PTH110


def fingerprint_files(arguments: dict[str, Any]) -> str | None:
    """Hash what the arguments of a reader name; None where they name nothing.

    Args:
        arguments: of the reader, by name.
    """
    state, found = hashlib.blake2b(digest_size=16), False
    for key in sorted(arguments):
        value = arguments[key]
        if value is None or not is_of_files(key, value):
            continue
        if key == "file_root" and ("files" in arguments or "file_list" in arguments):
            continue  # these say which files; the directory does not count
        state.update(key.encode())
        _add(state, key, value)
        found = True
    return state.hexdigest() if found else None


def _add(state: hashlib.blake2b, key: str, value: Any) -> None:
    if key in _LISTS:
        state.update(_joined(list(value)))
        return
    for path in map(Path, _strings(value)):
        if path.is_dir():
            _add_directory(state, path)
        elif key in _READ:
            _add_content(state, path)
        else:
            size = path.stat().st_size if path.exists() else -1
            state.update(f"{path.name} {size}\n".encode())


def _joined(values: list[Any]) -> bytes:
    """Join values, names without the directory that they share."""
    if not values or not isinstance(values[0], (str, bytes, os.PathLike)):
        return repr(list(map(int, values))).encode()
    names = [os.fsdecode(value) for value in values]
    start = _shared(min(names), max(names)).rfind(os.sep) + 1
    return "\0".join(name[start:] for name in names).encode()


def _shared(first: str, last: str) -> str:
    """Return how the smallest and the largest name begin, and so all between them."""
    differs = (place for place, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1])
    return first[: next(differs, min(len(first), len(last)))]


def _add_directory(state: hashlib.blake2b, root: Path) -> None:
    """Add the names in a directory and in those directly in it, sorted: as deep as DALI's readers look."""
    with os.scandir(root) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        state.update(entry.name.encode() + b"\n")
        if entry.is_dir():
            # A million names: a Path of each would take longer than everything else.
            state.update("\0".join(sorted(os.listdir(entry.path))).encode())  # noqa: PTH208


def _add_content(state: hashlib.blake2b, path: Path) -> None:
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            state.update(block)


def _strings(value: Any) -> list[str]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return [os.fsdecode(one) for one in values if isinstance(one, (str, bytes, os.PathLike))]
