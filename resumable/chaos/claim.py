"""The directory of a campaign: who may write to it, and what may be removed from it."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

from resumable.chaos.launch.runner import CASE
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["BASELINE", "RECORD", "claim", "remove_case"]

BASELINE = "baseline"
RECORD = "campaign.json"
_LOCK = "campaign.lock"
_REPORTS = ("report.json", "report.html")
_NUMBER = re.compile(r"\d{4,}")


@contextmanager
def claim(directory: Path) -> Iterator[Path]:
    """Take a directory for a campaign, and remove what an earlier one left there.

    Yields:
        Its absolute path.

    Raises:
        ConfigurationError: another campaign runs in it, or it holds what no campaign has written.
    """
    root = directory.absolute()
    root.mkdir(parents=True, exist_ok=True)
    _check_ours(root)
    with _locked(root, directory):
        _check_ours(root)
        for path in sorted(root.iterdir()):
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in {_LOCK, RECORD}:
                path.unlink()
        (root / RECORD).unlink(missing_ok=True)  # last of all: without it, the others would not be known for ours
        yield root


def _check_ours(root: Path) -> None:
    if foreign := sorted(path.name for path in root.iterdir() if not _is_ours(path)):
        raise _foreign(root, foreign[0])


def _foreign(directory: Path, name: str) -> ConfigurationError:
    return ConfigurationError(
        f"the directory {directory} holds {name}, which no chaos run has written.\nA chaos run removes what "
        "the one before left in its directory. Give it one of its own."
    )


def _is_ours(path: Path) -> bool:
    """Return whether a campaign has written something: by what is in it, as anybody may have given it that name."""
    if path.is_symlink():
        return False
    if path.is_dir():
        if path.name == BASELINE:
            return all(_is_case(run) for run in path.iterdir())
        return _NUMBER.fullmatch(path.name) is not None and _is_case(path)
    if path.name == _LOCK:
        return path.stat().st_size == 0
    return path.name in {RECORD, *_REPORTS} and _is_record(path.with_name(RECORD))


def _is_case(path: Path) -> bool:
    """Return whether a directory is that of a case: it says so itself, or was made by a run that was killed at once."""
    if path.is_symlink() or not path.is_dir():
        return False
    return _has_keys(path / CASE, {"command", "legs"}) or not any(path.iterdir())


def _is_record(path: Path) -> bool:
    return _has_keys(path, {"format", "command", "scripts"})


def _has_keys(path: Path, keys: set[str]) -> bool:
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and values.keys() >= keys


def remove_case(directory: Path) -> None:
    """Remove what is left of a case, if there is anything.

    Raises:
        ConfigurationError: it is no case's.
    """
    if directory.is_symlink() or (directory.exists() and not _is_case(directory)):
        raise _foreign(directory.parent, directory.name)
    if directory.exists():
        shutil.rmtree(directory)


@contextmanager
def _locked(root: Path, directory: Path) -> Iterator[None]:
    """Hold the lock of a directory; the system releases that of a process which ends."""
    with (root / _LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"another chaos run is at work in {directory}.\nEach would remove what the other one writes. Give this "
                "one another directory, or wait."
            ) from None
        yield
