"""A campaign: the baseline runs, the plan derived from them, all cases, and the results."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable.chaos.inventory import read_left, write_left
from resumable.chaos.launch.mirror import LOCK, Mirror
from resumable.chaos.launch.runner import CASE, Command, run_case
from resumable.chaos.ledger import read_attempts
from resumable.chaos.plan import Case, Launch, Survey, by_the_clock, exhaustive, limited, pairs, randomly
from resumable.chaos.report import Outcome, Report
from resumable.chaos.verify.baseline import check_healthy, check_seen, drop_what_differs, forgive_rounding
from resumable.chaos.verify.checks import check, check_restarts
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from resumable.chaos.launch.reaper import Reaper
    from resumable.chaos.ledger import Attempt


__all__ = [
    "BASELINE",
    "Outcome",
    "Planned",
    "Record",
    "Report",
    "claim",
    "plan_cases",
    "read_record",
    "remove_case",
    "run_campaign",
    "survey",
    "write_record",
]


def survey(
    command: Command, directory: Path, ranks: tuple[int, ...], reaper: Reaper | None = None
) -> tuple[Attempt, Survey, list[str]]:
    """Run the command twice without faults, and record its failpoints.

    Args:
        command: the user's.
        directory: for the ledgers of the two runs.
        ranks: numbers of ranks of successive launches.
        reaper: kills the processes if this process ends.

    Returns:
        The record of the first run without the differences from the second; its failpoints; and these differences, in
        words.

    Raises:
        ConfigurationError: it fails without faults, or does not use this library.
    """
    attempt, again = (_run_baseline(command, directory / str(number), ranks[0], reaper) for number in range(2))
    notes = drop_what_differs(attempt, again)
    attempt.silence = max(attempt.silence, again.silence)
    leader = attempt.ranks[min(attempt.ranks)]
    notes += check_seen(leader, ranks)
    workers = max(attempt.workers, key=len, default=[])
    return attempt, Survey(leader.points, workers, leader.saved_at, ranks, leader.loaders), notes


def _run_baseline(command: Command, directory: Path, ranks: int, reaper: Reaper | None) -> Attempt:
    *before, attempt = run_case(command, Case((Launch(None, ranks),)), directory, reaper)
    check_healthy(attempt, directory)
    check_restarts(before)
    if attempt.left:
        write_left(attempt.left, directory)
    shutil.rmtree(directory / "work", ignore_errors=True)  # only the ledgers and the recorded contents are compared
    return attempt


class Planned(NamedTuple):
    """The cases of a campaign.

    Args:
        cases: in order.
        number: how many there would be with every fault at every failpoint.
    """

    cases: list[Case]
    number: int


def plan_cases(  # noqa: PLR0913  # the options of the command line
    survey: Survey,
    kinds: Sequence[str],
    points: str | int,
    *,
    pairs_: int,
    random_: int,
    seed: int,
    mtbf: float | None = None,
    failures: int = 0,
    affordable: int = 0,
) -> Planned:
    """Choose the cases.

    Args:
        survey: of the baseline run.
        kinds: of faults.
        points: "all", or the number of failpoints per kind; "auto" for as many cases as are affordable.
        pairs_: number of cases with two faults.
        random_: number of cases at random failpoints.
        seed: of the random choices.
        mtbf: mean time between failures in one more case; None for no such case.
        failures: number of failures in that case.
        affordable: number of cases for "auto"; more if each type of failpoint and kind of fault needs them.
    """
    every = exhaustive(survey, kinds, seed)
    if isinstance(points, int):
        chosen = limited(every.cases, points) if points else iter(())
    else:
        chosen = islice(every.cases, None if points == "all" else max(every.least, affordable))
    others = [
        *pairs(survey, kinds, seed, pairs_),
        *randomly(survey, kinds, seed + 1, random_),
        *([] if mtbf is None else [by_the_clock(survey, mtbf, failures, seed + 2)]),
    ]
    return Planned([*chosen, *others], every.number + len(others))


def run_campaign(  # noqa: PLR0913  # all parts of a campaign
    command: Command,
    report: Report,
    cases: Iterable[Case],
    directory: Path,
    *,
    jobs: int,
    show: Callable[[Outcome], None],
    reaper: Reaper | None = None,
) -> None:
    """Run cases in parallel, and keep the directories of those that failed.

    Args:
        command: the user's.
        report: receives the outcomes.
        cases: the faults.
        directory: for the directories of the cases.
        jobs: number of cases at the same time.
        show: called with each outcome as soon as it is known.
        reaper: kills the processes if this process ends.
    """

    def run_one(number: int, case: Case) -> Outcome:
        place = directory / f"{number:04}"
        attempts = run_case(command, case, place, reaper)
        forgive_rounding(report.baseline, attempts)
        outcome = Outcome.of(case, place, attempts, check(case, report.baseline, attempts), report.baseline)
        if outcome.ok:
            shutil.rmtree(place)
        return outcome

    with ThreadPoolExecutor(jobs) as pool:
        try:
            for future in as_completed([pool.submit(run_one, *numbered) for numbered in enumerate(cases, start=1)]):
                report.add(future.result())
                show(report.outcomes[-1])
        except BaseException:
            if reaper:
                reaper.stopping.set()
            pool.shutdown(cancel_futures=True)
            raise
    report.outcomes.sort(key=lambda outcome: outcome.directory)


# The directory of a campaign: its lock, and which files may be removed.

BASELINE = "baseline"
RECORD = "campaign.json"
_REPORTS = ("report.json", "report.html")
_NUMBER = re.compile(r"\d{4,}")


@contextmanager
def claim(directory: Path) -> Iterator[Path]:
    """Lock a directory for a campaign, and remove the files of an earlier one.

    Yields:
        Its absolute path.

    Raises:
        ConfigurationError: another campaign uses it, or it contains files that no campaign wrote.
    """
    root = directory.absolute()
    root.mkdir(parents=True, exist_ok=True)
    _check_ours(root)
    with _locked(root, directory):
        _check_ours(root)
        for path in sorted(root.iterdir()):
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in {LOCK, RECORD}:
                path.unlink()
        (root / RECORD).unlink(missing_ok=True)  # last, because it identifies the rest as ours
        yield root


def _check_ours(root: Path) -> None:
    if foreign := sorted(path.name for path in root.iterdir() if not _is_ours(path)):
        raise _foreign(root, foreign[0])


def _foreign(directory: Path, name: str) -> ConfigurationError:
    return ConfigurationError(
        f"the directory {directory} contains {name}, which no chaos run wrote.\nA chaos run removes the files of the "
        "previous one from its directory. Choose a separate directory."
    )


def _is_ours(path: Path) -> bool:
    """Return whether a campaign wrote a file or folder, judged from the content, because the name proves nothing."""
    if path.is_symlink():
        return False
    if path.is_dir():
        if path.name == BASELINE:
            return all(_is_case(run) for run in path.iterdir())
        return _NUMBER.fullmatch(path.name) is not None and _is_case(path)
    if path.name == LOCK:
        return path.stat().st_size == 0
    return path.name in {RECORD, *_REPORTS} and _is_record(path.with_name(RECORD))


def _is_case(path: Path) -> bool:
    """Return whether a directory belongs to a case: it has a record, or is empty because its run was killed early."""
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
    """Remove the files of a case, if there are any.

    Raises:
        ConfigurationError: the directory does not belong to a case.
    """
    if directory.is_symlink() or (directory.exists() and not _is_case(directory)):
        raise _foreign(directory.parent, directory.name)
    if directory.exists():
        shutil.rmtree(directory)


@contextmanager
def _locked(root: Path, directory: Path) -> Iterator[None]:
    """Hold the lock of a directory; the system releases it if the process dies."""
    with (root / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"another chaos run is using {directory}.\nEach would remove the other's files. Choose a different "
                "directory, or wait."
            ) from None
        yield


# The record of a campaign, from which a case can be run again.

_FORMAT = 2  # format 1 had digests of whole checkpoints in the ledgers


def write_record(root: Path, command: Command, seed: int, ranks: tuple[int, ...]) -> None:
    """Write the record from which cases can be run again."""
    values = {
        "format": _FORMAT,
        "command": command.words,
        "patience": command.patience,
        "silence": command.silence,
        "grace": command.grace,
        "limit": command.limit,
        "ignore": command.ignore,
        "seed": seed,
        "ranks": ranks,
        "directory": str(command.mirror.project),
        "scripts": {word: _digest(Path(word)) for word in _scripts(command.words)},
    }
    (root / RECORD).write_text(json.dumps(values, indent=1) + "\n")


def _scripts(words: Sequence[str]) -> list[str]:
    return [word for word in words if word.endswith(".py") and Path(word).is_file()]


def _digest(path: Path) -> str:
    return blake2b(path.read_bytes(), digest_size=8).hexdigest()


class Record(NamedTuple):
    """Everything needed to run a case again.

    Args:
        command: the user's.
        seed: of the campaign.
        case: the faults.
        baseline: the record of the run without faults.
        notes: what is not compared, in words.
    """

    command: Command
    seed: int
    case: Case
    baseline: Attempt
    notes: list[str]


def read_record(place: Path) -> Record:
    """Read the record of a case.

    Args:
        place: directory of the case.

    Raises:
        ConfigurationError: there is none, or the command's scripts cannot be found from here.
    """
    values, case = _read_json(place.parent / RECORD, place), _read_json(place / CASE, place)
    if values["format"] != _FORMAT:
        raise ConfigurationError(
            f"{place.parent / RECORD} has format {values['format']}, but this version of resumable reads {_FORMAT}.\n"
            "Run the campaign again, or replay the case with the version that wrote it."
        )
    command = Command(
        tuple(values["command"]),
        values["patience"],
        values["grace"],
        values["limit"],
        ignore=tuple(values.get("ignore", ())),
        mirror=Mirror(Path(values["directory"]) if Path(values["directory"]).is_dir() else Path.cwd(), place.parent),
        silence=values.get("silence"),
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
            f"{place} is not a case of a chaos run: {path} does not exist.\nThe directories of passed cases are "
            "removed. Pass the directory of a failed case, as in the report."
        ) from None
    except ValueError as error:
        raise ConfigurationError(f"{path} cannot be read: {error}.\nRun the campaign again.") from None


def _compare_scripts(values: dict[str, Any]) -> list[str]:
    if missing := [word for word in values["scripts"] if not Path(word).is_file()]:
        raise ConfigurationError(
            f"{missing[0]} does not exist in {Path.cwd()}.\nThe campaign ran in {values['directory']}. Go there, or to "
            "the script's new folder."
        )
    return [
        f"{word} has changed since the campaign, but is compared with its baseline run: if it is meant to train on "
        "different data now, run the campaign again"
        for word, digest in values["scripts"].items()
        if _digest(Path(word)) != digest
    ]


def _read_baseline(directory: Path, place: Path) -> Attempt:
    ledgers = directory / "attempt-0"
    if not ledgers.is_dir():
        raise ConfigurationError(
            f"{place} cannot be run again: {ledgers}, the ledger of the baseline run, is missing.\n"
            "Run the campaign again."
        )
    attempt = read_attempts(ledgers, 0)[-1]
    attempt.status, attempt.left = os.EX_OK, read_left(directory)
    return attempt
