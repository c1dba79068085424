"""What the flight recorders of a command say after a start of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable.errors import ConfigurationError
from resumable.flight import read

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["find_flights", "read_flights"]


def find_flights(directory: Path) -> dict[Path, bytes]:
    """Return the records below a directory as they are."""
    return {path: path.read_bytes() for path in sorted(directory.rglob("rank-*.flight")) if path.is_file()}


def read_flights(directory: Path, before: Mapping[Path, bytes]) -> dict[int, list[str]]:
    """Return where each rank was when it ended, by the flight recorders of its loaders, in words.

    Args:
        directory: of the case, in which the command's folders are.
        before: what was found there before the start; a record that has not changed is of an earlier one.
    """
    written = {path for path, content in find_flights(directory).items() if before.get(path) != content}
    said: dict[int, list[str]] = {}
    for folder in sorted({path.parent for path in written}):
        try:
            records = read(folder)
        except ConfigurationError:  # they are damaged, as a fault may have left them
            continue
        for record in records:
            if folder / f"rank-{record.rank:05}.flight" in written:
                said.setdefault(record.rank, []).append(f"{record.status} {record.where}")
    return said
