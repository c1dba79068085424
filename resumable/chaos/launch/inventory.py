"""The files that a run leaves at its end, each with what it holds.

A file is named by its path in the work folder; one that was redirected into the case's directory by its own path.
Left out are the steps of a CheckpointStore, which are compared when they are saved, flight records, and what Python
compiles.
"""

from __future__ import annotations

import json
import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable._inspect.distributed import METADATA
from resumable.chaos.launch.contents import is_log, parts_of_file, unversioned
from resumable.checkpoint.steps import DIRECTORY, TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Left", "Stamps", "changed", "read_left", "stamps", "take_inventory", "write_left"]

_FILE = "left.json"  # in the directory of a case
_OURS = re.compile(rf"rank-\d+\.flight|.*\.pyc|{re.escape(TOKEN)}")
_WORD = re.compile(r"(\d+)")
Stamps = dict[Path, tuple[int, int]]


class Left(NamedTuple):
    """What a run left.

    Args:
        files: the parts of each file, by its name.
        ignored: names of files that were left out, as the user asked for.
        damaged: names of files that were damaged or removed on purpose, and not written again.
        unlike: of files that only one of two baseline runs left, each name with a `#` for every number.
    """

    files: dict[str, dict[str, str]]
    ignored: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()


def take_inventory(
    case: Path, ignore: Sequence[str] = (), damaged: Stamps | None = None, *, rounded: bool = False
) -> Left:
    """Look at all files that a run has left.

    Args:
        case: its directory.
        ignore: patterns of names that are left out.
        damaged: files that were damaged on purpose, as they were after that; those that have not changed since are
            left out.
        rounded: numbers are to be compared up to rounding.
    """
    files: dict[str, dict[str, str]] = {}
    ignored: set[str] = set()
    work = case / "work"
    spoilt = {path for path, stamp in (damaged or {}).items() if stamp == _stamp(path)}
    for path in sorted(set(_paths(case)) - spoilt, key=lambda path: _by_numbers(str(path))):
        name = _name(path, case)
        if any(_matches(name, glob) or _matches(path.name, glob) for glob in ignore):
            ignored.add(name)
            continue
        parts = parts_of_file(path, work, rounded=rounded)
        files[name] = {**files.get(name, {}), **parts} if is_log(path) else parts
    return Left(files, tuple(sorted(ignored)), tuple(sorted(_name(path, case) for path in spoilt)))


def _name(path: Path, case: Path) -> str:
    outside = case / "outside" / "files"
    if path.is_relative_to(outside):
        return unversioned(f"/{path.relative_to(outside).as_posix()}")
    return unversioned(path.relative_to(case / "work").as_posix())


def _paths(case: Path) -> Iterator[Path]:
    yield from _walk(case / "work")
    yield from _walk(case / "outside" / "files")


def _walk(folder: Path) -> Iterator[Path]:
    """Yield files, and folders of torch.distributed.checkpoint; a link counts if it leads to a file beside them."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    if any(entry.name == METADATA for entry in entries):
        yield folder
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if not DIRECTORY.fullmatch(entry.name) and entry.name != "__pycache__":
                yield from _walk(Path(entry.path))
        elif entry.is_file() and not _OURS.fullmatch(entry.name) and _is_beside(entry):
            yield Path(entry.path)


def _is_beside(entry: os.DirEntry[str]) -> bool:
    return not entry.is_symlink() or not str(Path(entry.path).readlink()).startswith(("/", ".."))


def _by_numbers(text: str) -> list[Any]:
    """Return what sorts version_2 before version_10."""
    return [int(word) if word.isdigit() else word for word in _WORD.split(text)]


def _matches(name: str, glob: str) -> bool:
    return fnmatchcase(name, glob) or fnmatchcase(name, f"{glob.rstrip('/')}/*")


# ------------------------------------------------------------------ damage


def stamps(case: Path) -> Stamps:
    """Return when each file was written, and its size."""
    return {path: _stamp(path) for path in _paths(case)}


def changed(before: Stamps, case: Path) -> Stamps:
    """Return the files that are not as they were, as they are now; (0, 0) for one that is gone."""
    now = stamps(case)
    return {path: now.get(path, (0, 0)) for path in {**before, **now} if before.get(path) != now.get(path)}


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


# ------------------------------------------------------------------ the record of a baseline run


def write_left(left: Left, case: Path) -> None:
    """Write down what a run left."""
    (case / _FILE).write_text(json.dumps(left._asdict()))


def read_left(case: Path) -> Left | None:
    """Read it again; None where nothing was written down."""
    try:
        values = json.loads((case / _FILE).read_text())
    except (OSError, ValueError):
        return None
    return Left(values.pop("files"), **{name: tuple(names) for name, names in values.items()})
