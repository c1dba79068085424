"""The record of a campaign: what a case needs to be run again."""

from __future__ import annotations

import json
import os
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable.chaos.claim import BASELINE, RECORD
from resumable.chaos.launch.inventory import read_left
from resumable.chaos.launch.runner import CASE, Command
from resumable.chaos.plan import Case
from resumable.chaos.recorder.attempts import read_attempts
from resumable.chaos.verify.baseline import drop_what_differs
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable.chaos.recorder.attempts import Attempt

__all__ = ["Record", "read_record", "write_record"]

_FORMAT = 2  # 1 had digests of whole checkpoints in the ledgers


def write_record(root: Path, command: Command, seed: int, ranks: tuple[int, ...]) -> None:
    """Write down what a case of a campaign needs to be run again."""
    values = {
        "format": _FORMAT,
        "command": command.words,
        "patience": command.patience,
        "grace": command.grace,
        "limit": command.limit,
        "ignore": command.ignore,
        "seed": seed,
        "ranks": ranks,
        "directory": str(Path.cwd()),
        "scripts": {word: _digest(Path(word)) for word in _scripts(command.words)},
    }
    (root / RECORD).write_text(json.dumps(values, indent=1) + "\n")


def _scripts(words: Sequence[str]) -> list[str]:
    return [word for word in words if word.endswith(".py") and Path(word).is_file()]


def _digest(path: Path) -> str:
    return blake2b(path.read_bytes(), digest_size=8).hexdigest()


class Record(NamedTuple):
    """What a case needs to be run again.

    Args:
        command: the user's.
        seed: of the campaign.
        case: the faults.
        baseline: what the run without faults did.
        notes: what is not compared, in words.
    """

    command: Command
    seed: int
    case: Case
    baseline: Attempt
    notes: list[str]


def read_record(place: Path) -> Record:
    """Read what a case needs to be run again.

    Args:
        place: directory of the case.

    Raises:
        ConfigurationError: there is none, or the command's scripts cannot be found from here.
    """
    values, case = _read_json(place.parent / RECORD, place), _read_json(place / CASE, place)
    if values["format"] != _FORMAT:
        raise ConfigurationError(
            f"{place.parent / RECORD} has format {values['format']}, and this version of resumable knows {_FORMAT}.\n"
            "Run the campaign again, or replay it with the version that wrote it."
        )
    command = Command(
        tuple(values["command"]),
        values["patience"],
        values["grace"],
        values["limit"],
        ignore=tuple(values.get("ignore", ())),
    )
    notes = _compare_scripts(values)
    first, second = (_read_baseline(place.parent / BASELINE / str(number), place) for number in range(2))
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
        raise ConfigurationError(f"{path} cannot be read: {error}.\nRun the campaign again.") from None


def _compare_scripts(values: dict[str, Any]) -> list[str]:
    if missing := [word for word in values["scripts"] if not Path(word).is_file()]:
        raise ConfigurationError(
            f"there is no {missing[0]} in {Path.cwd()}.\nThe campaign ran in {values['directory']}. Go there, or to "
            "where the script is now."
        )
    return [
        f"{word} is another one than in the campaign, whose baseline run is compared with: if it is to train on other "
        "data now, run the campaign again"
        for word, digest in values["scripts"].items()
        if _digest(Path(word)) != digest
    ]


def _read_baseline(directory: Path, place: Path) -> Attempt:
    ledgers = directory / "attempt-0"
    if not ledgers.is_dir():
        raise ConfigurationError(
            f"{place} cannot be run again: {ledgers}, the ledger of the baseline run, is gone.\nRun the campaign again."
        )
    attempt = read_attempts(ledgers, 0)[-1]
    attempt.status, attempt.left = os.EX_OK, read_left(directory)
    return attempt
