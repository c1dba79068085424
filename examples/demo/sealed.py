"""Checkpoint folders of other libraries, with digests of their files, so incomplete or damaged ones are skipped.

Accelerate and the Trainer write file after file in place, without checksums. A seal is written after all of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["is_sealed", "last_sealed", "seal"]

_SEAL = "sealed.json"
_NUMBER = re.compile(r"\d+$")


def seal(folder: Path) -> None:
    """Make the files of a checkpoint durable, and write their digests atomically to one more file."""
    digests = {path.name: _digest(path) for path in _files(folder)}
    for path in _files(folder):
        _sync(path)
    part = folder / f"{_SEAL}.part"
    part.write_text(json.dumps(digests), encoding="utf-8")
    _sync(part)
    _sync(folder)
    part.replace(folder / _SEAL)
    _sync(folder)
    _sync(folder.parent)


def last_sealed(root: Path) -> Path | None:
    """Return the checkpoint with the highest number whose files match its seal; None if there is none."""
    folders = [path for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
    return next((path for path in sorted(folders, key=_number, reverse=True) if is_sealed(path)), None)


def is_sealed(folder: Path) -> bool:
    """Return whether all files of a checkpoint match its seal."""
    try:
        digests = json.loads((folder / _SEAL).read_text(encoding="utf-8"))
        return bool({path.name: _digest(path) for path in _files(folder)} == digests)
    except (OSError, ValueError):
        return False


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(_SEAL)]


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes()).hexdigest()


def _number(folder: Path) -> int:
    found = _NUMBER.search(folder.name)
    return int(found[0]) if found else -1


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
