"""Lists of files with labels, in the order of DALI's own reader: from a folder of classes, or from a text file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["classes_of", "lines_of"]

# What fn.readers.file looks for where file_filters is not given, without the formats of sound.
_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".pnm", ".ppm", ".pgm", ".pbm", ".jp2", ".webp")


def classes_of(folder: Path) -> list[tuple[str, int | None]]:
    """Return the images below each folder of a folder, sorted, with the number of that folder."""
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    return [(path, label) for label, name in enumerate(classes) for path in _images(folder, name)]


def _images(folder: Path, name: str) -> list[str]:
    found, cut = list[str](), len(os.path.join(folder, ""))  # noqa: PTH118  # a million of them: no Path objects
    for where, _, names in sorted(os.walk(folder / name, followlinks=True)):
        below = where[cut:]
        found += [f"{below}/{file}" for file in sorted(names) if file.lower().endswith(_ENDINGS)]
    return found


def lines_of(file: Path) -> list[tuple[str, int | None]]:
    """Return the paths and labels of a text file: one pair per line, the label after the last blank.

    Raises:
        ConfigurationError: a line is no such pair.
    """
    entries: list[tuple[str, int | None]] = []
    with file.open(encoding="utf-8", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                entries.append(_parse(line.strip(), file, number))
    return entries


def _parse(line: str, file: Path, number: int) -> tuple[str, int]:
    name, _, label = line.replace("\t", " ").rpartition(" ")
    try:
        return name.rstrip(), int(label)
    except ValueError as error:
        raise ConfigurationError(
            f"line {number} of {str(file)!r} is not a path and a label: {line!r}.\n"
            "The label would be unknown. Write a path, a blank and an integer."
        ) from error
