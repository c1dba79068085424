"""Marks on paths, shared by all processes of a case, including later launches."""

from __future__ import annotations

import os
import posix
from contextlib import suppress

from resumable.chaos.recorder.overlay.thread import trusted

__all__ = ["Marks", "make_dirs"]

_MARK = ".this-path"  # a file in the folder of a marked path, which may contain other marks


class Marks:
    """A set of paths; everything below one of them belongs to it.

    Args:
        root: a directory, which is created with the first mark.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    def add(self, real: str) -> None:
        """Mark a path."""
        make_dirs(f"{self._root}{real}")
        with trusted():
            posix.close(
                posix.open(f"{self._root}{real}/{_MARK}", posix.O_WRONLY | posix.O_CREAT | posix.O_CLOEXEC, 0o644)
            )

    def covers(self, real: str) -> bool:
        """Return whether a path, or a directory above it, is marked."""
        place = self._root
        for part in real.split("/"):
            place = f"{place}/{part}" if part else place
            try:
                if part:
                    posix.lstat(place)
            except OSError:
                return False  # nothing below it is marked
            if self.has(place[len(self._root) :]):
                return True
        return False

    def has(self, real: str) -> bool:
        """Return whether a path itself is marked."""
        try:
            posix.lstat(f"{self._root}{real}/{_MARK}")
        except OSError:
            return False
        return True

    def has_below(self, real: str) -> bool:
        """Return whether paths in a directory may be marked."""
        try:
            posix.lstat(f"{self._root}{real}")
        except OSError:
            return False
        return True


def make_dirs(path: str) -> None:
    """Create a directory of the case and its parents."""
    with trusted():
        try:
            posix.mkdir(path)
        except FileExistsError:
            return
        except FileNotFoundError:
            make_dirs(os.path.dirname(path))
            with suppress(FileExistsError):
                posix.mkdir(path)
