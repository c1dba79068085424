"""The directory of a campaign: who may write to it, and what a case needs to be run anew."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable.chaos.control import drop_what_differs
from resumable.chaos.logs import read_attempt
from resumable.chaos.plan import Case
from resumable.chaos.runner import CASE, Command
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resumable.chaos.logs import Attempt

__all__ = ["UNHARMED", "Record", "claim", "read_record", "remove_case", "write_record"]

UNHARMED = "unharmed"
_RECORD = "campaign.json"
_LOCK = "campaign.lock"
_REPORTS = ("report.json", "report.html")
_NUMBER = re.compile(r"\d{4,}")
_FORMAT = 1


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
            elif path.name not in {_LOCK, _RECORD}:
                path.unlink()
        (root / _RECORD).unlink(missing_ok=True)  # last of all: without it, nobody would know the others for ours
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
    """Tell whether a campaign has written something: by what is in it, as anybody may have given it that name."""
    if path.is_symlink():
        return False
    if path.is_dir():
        if path.name == UNHARMED:
            return all(_is_case(run) for run in path.iterdir())
        return _NUMBER.fullmatch(path.name) is not None and _is_case(path)
    if path.name == _LOCK:
        return path.stat().st_size == 0
    return path.name in {_RECORD, *_REPORTS} and _is_record(path.with_name(_RECORD))


def _is_case(path: Path) -> bool:
    """Tell whether a directory is that of a case: it says so itself, or was made by a run that was killed at once."""
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


def write_record(root: Path, command: Command, seed: int, ranks: tuple[int, ...]) -> None:
    """Write down what a case of a campaign needs to be run anew."""
    values = {
        "format": _FORMAT,
        "command": command.words,
        "patience": command.patience,
        "grace": command.grace,
        "limit": command.limit,
        "seed": seed,
        "ranks": ranks,
        "directory": str(Path.cwd()),
        "scripts": {word: _digest(Path(word)) for word in _scripts(command.words)},
    }
    (root / _RECORD).write_text(json.dumps(values, indent=1) + "\n")


def _scripts(words: Sequence[str]) -> list[str]:
    return [word for word in words if word.endswith(".py") and Path(word).is_file()]


def _digest(path: Path) -> str:
    return blake2b(path.read_bytes(), digest_size=8).hexdigest()


class Record(NamedTuple):
    """What a case needs to be run anew.

    Args:
        command: the user's.
        seed: of the campaign.
        case: the faults.
        unharmed: what the run without faults did.
        notes: what is not compared, in words.
    """

    command: Command
    seed: int
    case: Case
    unharmed: Attempt
    notes: list[str]


def read_record(place: Path) -> Record:
    """Read what a case needs to be run anew.

    Args:
        place: directory of the case.

    Raises:
        ConfigurationError: there is none, or the command's scripts cannot be found from here.
    """
    values, case = _read_json(place.parent / _RECORD, place), _read_json(place / CASE, place)
    if values["format"] != _FORMAT:
        raise ConfigurationError(
            f"{place.parent / _RECORD} has format {values['format']}, and this version of resumable knows {_FORMAT}.\n"
            "Run the campaign anew, or replay it with the version that wrote it."
        )
    command = Command(tuple(values["command"]), values["patience"], values["grace"], values["limit"])
    notes = _compare_scripts(values)
    first, second = (_read_unharmed(place.parent / UNHARMED / str(number), place) for number in range(2))
    notes += drop_what_differs(first, second)
    return Record(command, values["seed"], Case.from_dict(case), first, notes)


def _read_json(path: Path, place: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigurationError(
            f"{place} is no case of a chaos run: there is no {path}.\nThe directories of cases that passed are "
            "removed. Give the directory of one that failed, as the report names it."
        ) from None
    except ValueError as error:
        raise ConfigurationError(f"{path} cannot be read: {error}.\nRun the campaign anew.") from None


def _compare_scripts(values: dict[str, Any]) -> list[str]:
    if missing := [word for word in values["scripts"] if not Path(word).is_file()]:
        raise ConfigurationError(
            f"there is no {missing[0]} in {Path.cwd()}.\nThe campaign ran in {values['directory']}. Go there, or to "
            "where the script is now."
        )
    return [
        f"{word} is another one than in the campaign, whose unharmed run is compared with: if it is to train on other "
        "data now, run the campaign anew"
        for word, digest in values["scripts"].items()
        if _digest(Path(word)) != digest
    ]


def _read_unharmed(directory: Path, place: Path) -> Attempt:
    ledgers = directory / "attempt-0"
    if not ledgers.is_dir():
        raise ConfigurationError(
            f"{place} cannot be run anew: {ledgers}, the ledger of the unharmed run, is gone.\nRun the campaign anew."
        )
    attempt = read_attempt(ledgers, 0)
    attempt.status = os.EX_OK
    return attempt
