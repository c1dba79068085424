"""The working folder of a case: a mirror of the current folder.

A program finds its relative inputs there, and whatever it writes stays in the case. Folders are real, small files are
copies, and large files and folders are links, which the guard replaces with copies when the program changes them.

Left out are checkpoints of an earlier run, which hold the state of a Loader: each case starts with the first batch. So
are folders of chaos runs, version control, virtual environments and caches of tools.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from resumable._inspect.distributed import METADATA
from resumable._inspect.reading import open_checkpoint
from resumable._inspect.states import find_states
from resumable.chaos.inventory import CHECKPOINTS
from resumable.checkpoint.marker import MARKER
from resumable.checkpoint.steps import DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LOCK", "Mirror"]

_IN_A_FOLDER = 1000  # entries of a folder that is mirrored; a larger one is a link
_IN_ALL = 10_000  # entries that are mirrored
_SMALL = 1 << 20  # bytes of a file that is copied
_COPIED = 100 << 20  # bytes that are copied in all
_TOOLS = {
    *(".git", ".hg", ".svn", ".tox", ".nox", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis"),
    *("__pycache__", "node_modules", "pyvenv.cfg"),
}
LOCK = "campaign.lock"  # in the folder of a chaos run
_STATES = {*CHECKPOINTS, ".json", ".distcp"} - {".npy"}
_LOOKED_INTO = 100  # files with such a suffix in a folder; a folder with more is data
_LARGEST_TEXT = 1 << 20  # bytes of JSON
_NEXT_TO_IT = {"work", "replay", "case.json", "left.json"}  # names in a case


class Mirror:
    """The content of a folder, noted once for all cases.

    Args:
        project: the folder.
        without: the folder of the chaos run, which is left out.

    Attributes:
        left_out: files and folders of an earlier run that are not mirrored.
    """

    def __init__(self, project: Path, without: Path | None = None) -> None:
        self.project = project.resolve()
        self.left_out: list[str] = []
        self._without = None if without is None else without.resolve()
        self._folders: list[str] = []  # paths relative to the folder, here and below
        self._copies: list[str] = []
        self._links: list[str] = []
        self._inner: dict[str, str] = {}  # links within the folder, and where they lead
        self._look()

    def _look(self) -> None:
        """Go through the folder, the upper levels first."""
        seen = {os.path.realpath(self.project)}
        waiting, number, copied = [""], 0, 0
        while waiting:
            place = waiting.pop(0)
            entries = self._entries(place)
            number += len(entries)
            if place and (len(entries) > _IN_A_FOLDER or number > _IN_ALL):
                number -= len(entries)
                self._links.append(place)
                continue
            if place:
                self._folders.append(place)
            for entry in entries if not place else self._without_states(place, entries):
                name, real = f"{place}/{entry.name}" if place else entry.name, os.path.realpath(entry.path)
                if not place and _has_state(entry):
                    self.left_out.append(name)
                elif entry.is_symlink() and real.startswith(f"{self.project}/"):
                    self._inner[name] = real[len(str(self.project)) + 1 :]
                elif entry.is_dir() and real not in seen:
                    seen.add(real)
                    waiting.append(name)
                elif (stat := _stat_of(entry)) and stat.st_size <= min(_SMALL, _COPIED - copied):
                    copied += stat.st_size
                    self._copies.append(name)
                else:
                    self._links.append(name)

    def _entries(self, place: str) -> list[os.DirEntry[str]]:
        try:
            found = sorted(os.scandir(self.project / place), key=lambda entry: entry.name)
        except OSError:
            return []
        names = {entry.name for entry in found}
        if "pyvenv.cfg" in names or (place and LOCK in names):
            return []
        return [entry for entry in found if entry.name not in _TOOLS and self._is_mirrored(entry)]

    def _is_mirrored(self, entry: os.DirEntry[str]) -> bool:
        try:
            entry.is_dir()
        except OSError:  # a link to itself
            return False
        return Path(os.path.realpath(entry.path)) != self._without

    def _without_states(self, place: str, entries: list[os.DirEntry[str]]) -> list[os.DirEntry[str]]:
        """Return the entries of a folder; of one with a checkpoint of an earlier run, only its folders."""
        names = {entry.name for entry in entries}
        marked = DIRECTORY.fullmatch(Path(place).name) is not None and MARKER in names
        code = any(name.endswith(".py") for name in names)
        files = [entry for entry in entries if entry.is_file() and set(Path(entry.name).suffixes) & _STATES]
        with_state = files if marked else [entry for entry in files[:_LOOKED_INTO] if _has_state(entry)]
        if not marked and METADATA in names and _holds_a_state(self.project / place):
            with_state = files
        if len(files) > _LOOKED_INTO or not (with_state or marked):
            return entries
        if code:  # the folder of a program
            self.left_out += [f"{place}/{entry.name}" for entry in with_state]
            return [entry for entry in entries if entry not in with_state]
        self.left_out.append(place)
        folders = [entry for entry in entries if entry.is_dir()]
        if not folders and any(letter.isdigit() for letter in Path(place).name):
            self._folders.remove(place)  # a program may search for such a name
        return folders

    def build(self, work: Path) -> dict[Path, tuple[int, int]]:
        """Create the mirror.

        Args:
            work: a folder that does not exist, in the directory of the case.

        Returns:
            The modification time and size of each copy, which is an input unless they change. A file in the folder may
            grow from case to case: the output of the chaos run itself, for example.
        """
        work.mkdir()
        inputs: dict[Path, tuple[int, int]] = {}
        for name in self._folders:
            (work / name).mkdir(parents=True)
        for name in self._copies:
            with suppress(OSError):  # it is gone, or may not be read
                stat = Path(shutil.copy2(self.project / name, work / name)).stat()
                inputs[work / name] = (stat.st_mtime_ns, stat.st_size)
        for name in self._links:
            (work / name).symlink_to(os.path.realpath(self.project / name))
        for name, target in self._inner.items():
            (work / name).symlink_to(work / target)
        for path in self._siblings():  # `../data` exists next to the mirror
            with suppress(OSError):
                (work.parent / path.name).symlink_to(path)
        return inputs

    def _siblings(self) -> Iterator[Path]:
        with suppress(OSError):
            found = [path for path in self.project.parent.iterdir() if path != self.project]
            if len(found) <= _IN_A_FOLDER:
                yield from (
                    path
                    for path in found
                    if not path.name.startswith((".", "attempt-")) and path.name not in _NEXT_TO_IT
                )

    def path(self, word: str, work: Path) -> str:
        """Return a word of the command, with a path in the project replaced with the path in its mirror.

        Relative paths that lead out of the project become absolute.
        """
        option, separator, text = word.rpartition("=")
        text = text or word
        path = Path(os.path.normpath(self.project / text))
        inside = path.is_relative_to(self.project)
        if text.startswith("/"):
            place = work / path.relative_to(self.project) if inside else path
            return f"{option}{separator}{place}" if inside and (place.exists() or not path.exists()) else word
        return f"{option}{separator}{path}" if text.startswith("../") and path.exists() else word


def _stat_of(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return the size and time of a file; None for anything else, and for a file that was just removed."""
    try:
        return entry.stat() if entry.is_file() else None
    except OSError:
        return None


def _has_state(entry: os.DirEntry[str]) -> bool:
    """Return whether a file is a checkpoint with the state of a Loader."""
    if not (entry.is_file() and set(Path(entry.name).suffixes) & _STATES):
        return False
    if entry.name.endswith(".json") and entry.stat().st_size > _LARGEST_TEXT:
        return False
    return _holds_a_state(Path(entry.path))


def _holds_a_state(path: Path) -> bool:
    try:
        with open_checkpoint(path) as content:
            return bool(find_states(content.tree))
    except Exception:  # noqa: BLE001  # whatever is in a user's file
        return False
