"""The public functions: run a campaign, and replay one of its cases."""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable.chaos.campaign import (
    BASELINE,
    claim,
    plan_cases,
    read_record,
    remove_case,
    run_campaign,
    survey,
    write_record,
)
from resumable.chaos.launch.mirror import Mirror
from resumable.chaos.launch.preload import Preload, check_preload
from resumable.chaos.launch.reaper import Reaper
from resumable.chaos.launch.runner import Command, run_case
from resumable.chaos.plan import FAULTS, aim, note_sizes, note_targets
from resumable.chaos.report import Outcome, Report
from resumable.chaos.report.progress import affordable, describe_plan, follow
from resumable.chaos.verify.baseline import forgive_rounding
from resumable.chaos.verify.checks import check
from resumable.chaos.verify.files import few
from resumable.chaos.verify.outcome import check_resumed, note_all, note_missed, settle_in_place
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resumable.chaos.plan import Case, Survey


__all__ = ["check_kinds", "check_points", "check_words", "choose_ranks", "replay", "run"]


def run(  # noqa: PLR0913  # each argument is also an option of the command line
    command: Sequence[str],
    *,
    faults: str | Sequence[str] | None = None,
    points: str | int | None = None,
    pairs: int = 0,
    random: int = 0,
    mtbf: float | None = None,
    failures: int = 3,
    seed: int = 0,
    ranks: int | None = None,
    resize: Sequence[int] | None = None,
    jobs: int = 1,
    directory: str | Path = "runs/chaos",
    patience: float = 60.0,
    grace: float = 5.0,
    limit: float = 3600.0,
    preload: str | Sequence[str] = (),
    ignore: str | Sequence[str] = (),
    tell: Callable[[str], None] | None = None,
) -> Report:
    """Break a training command on purpose, restart it, and compare it with two runs without faults.

    Args:
        command: its words. Each case runs in its own mirror of the current directory, without the checkpoints of
            earlier runs: relative inputs are found, and new files stay in the case. `{dir}` is replaced with the path
            of the mirror. A write anywhere else is rejected.
        faults: kinds of faults, from `resumable.chaos.FAULTS`. None for `kill`, and `worker-kill` if there are workers.
        points: number of failpoints per kind of fault; "all" for every one. None for as many cases as take a few
            minutes, with at least one of each type; with `mtbf`, for none.
        pairs: number of cases with two faults, the second one during the recovery from the first.
        random: number of cases with one to three faults at random failpoints.
        mtbf: mean time between failures in seconds, for one more case in which the command is killed at random times.
        failures: number of kills in that case.
        seed: seed of all random choices, and of which failpoint represents others of its type.
        ranks: number of ranks; None to take it from the command. It replaces `{ranks}` in the command, and the value
            of `--nproc-per-node=`.
        resize: numbers of ranks of successive launches.
        jobs: number of cases that run at the same time.
        directory: directory for the report and the failed cases. Files of the previous campaign are removed.
        patience: seconds without progress after which a launch is killed, or 20 times the longest silence of the
            baseline runs if that is more. The baseline runs themselves may be silent for 20 times as long.
        grace: seconds from SIGTERM to SIGKILL.
        limit: time limit of one launch in seconds.
        preload: modules, such as torch, that are imported once for all launches of a Python program. Each launch is
            forked from a process that has imported them, which saves seconds. Otherwise it runs as if launched
            directly, except that forked processes in separate sessions are not detected.
        ignore: patterns of files that are not compared, matched with the path in the work folder. `*` matches any
            characters, and a folder matches its whole content.
        tell: called with progress messages; None for only a progress bar, on a terminal.

    Returns:
        The report. `report.ok` is True if every promise was kept and, if the script trains a PyTorch model, part of
        the model was compared. `report.status` is the exit status of the command line, and `report.coverage` says what
        was compared.

    Raises:
        ConfigurationError: the options cannot work, or the command cannot be tested: it fails without faults, uses no
            loader of resumable, trains on different data each time, or writes or resumes outside its case.
    """
    began = time.monotonic()
    words, kinds = check_words(command), check_kinds(faults)
    limit_of_points = check_points(points, by_the_clock=mtbf is not None)
    for name, number, least in (
        ("pairs", pairs, 0),
        ("random", random, 0),
        ("failures", failures, 1),
        ("jobs", jobs, 1),
    ):
        check_amount(name, number, least)
    for name, seconds in (("mtbf", mtbf), ("patience", patience), ("grace", grace), ("limit", limit)):
        if seconds is not None:
            check_amount(name, seconds, 0, whole=False)
    starts = choose_ranks(words, ranks, resize)
    modules = tuple(name for name in (preload.split(",") if isinstance(preload, str) else preload) if name)
    check_preload(words, modules)
    with ExitStack() as stack:
        preloaded = stack.enter_context(Preload(modules)) if modules else None
        patterns = (ignore,) if isinstance(ignore, str) else tuple(ignore)
        root = stack.enter_context(claim(Path(directory)))
        mirror = Mirror(Path.cwd(), root)
        ours = Command(words, patience, grace, limit, preloaded, patterns, mirror)
        reaper = stack.enter_context(Reaper())
        write_record(root, ours, seed, starts)
        if tell:
            tell("Two baseline runs come first, to find the failpoints and to compare with.")
        baseline, found, notes = survey(ours, root / BASELINE, starts, reaper)
        ours = replace(ours, silence=baseline.silence)
        write_record(root, ours, seed, starts)
        notes += [f"of an earlier run, and not in the cases: {few(mirror.left_out)}"] * bool(mirror.left_out)
        each = (time.monotonic() - began) / 2
        kinds = choose_kinds(kinds, found)
        numbers = {"pairs_": pairs, "random_": random, "failures": failures, "affordable": affordable(each, jobs)}
        cases, every = plan_cases(found, kinds, limit_of_points, seed=seed, mtbf=mtbf, **numbers)
        cases = aim(cases, baseline)
        impossible = _find_impossible(found, kinds, limit_of_points, cases)
        notes += [f"no case of {kind}: {why}" for kind, why in impossible.items()]
        notes += note_targets(cases, baseline) + note_sizes(cases, starts)
        options: dict[str, Any] = {
            "faults": kinds,
            "points": limit_of_points,
            "pairs": pairs,
            "random": random,
            "mtbf": mtbf,
        }
        options |= {"failures": failures, "ranks": starts, "jobs": jobs}
        told: dict[str, Any] = {"options": options, "impossible": impossible, "ignore": patterns}
        report = Report(words, seed, baseline, notes, directory=root, **told)
        if tell:
            tell(describe_plan(len(cases), every, each, jobs))
        show = stack.enter_context(follow(len(cases), tell))
        run_campaign(ours, report, cases, root, jobs=jobs, show=show, reaper=reaper)
        settle_in_place(report)
        report.notes += [*note_missed(report), *note_all(report)]
        check_resumed(report)
        report.seconds = time.monotonic() - began
        report.save(root)
    return report


def _find_impossible(found: Survey, kinds: Sequence[str], points: str | int, cases: Sequence[Case]) -> dict[str, str]:
    """Find the kinds of faults that cannot happen in this run, and the reasons.

    Raises:
        ConfigurationError: no case is possible.
    """
    impossible = {kind: why for kind in kinds if (why := found.reason(kind))} if points else {}
    if not cases:
        told = "; ".join(f"{kind}: {why}" for kind, why in impossible.items()) or "none was requested"
        raise ConfigurationError(
            f"no case can run: {told}.\nNothing would be tested. Use other faults, a script that saves "
            "checkpoints and has workers, or points, pairs, random or mtbf above 0."
        )
    return impossible


def replay(directory: str | Path, *, tell: Callable[[str], None] | None = None) -> Report:
    """Run a case of a campaign again, with the same command and the same faults.

    Args:
        directory: directory of the case, as in the report. The output is written to `replay` in it.
        tell: called with progress messages.

    Returns:
        A report of this case alone.

    Raises:
        ConfigurationError: there is no such case, or its command cannot be found.
    """
    began = time.monotonic()
    place = Path(directory).absolute()
    record = read_record(place)
    again = place / "replay"
    remove_case(again)
    if tell:
        tell(f"Replaying case {place.name}: {record.case}.")
    with Reaper() as reaper:
        attempts = run_case(record.command, record.case, again, reaper)
    forgive_rounding(record.baseline, attempts)
    words, ignore = record.command.words, record.command.ignore
    report = Report(words, record.seed, record.baseline, record.notes, directory=again, ignore=ignore)
    found = check(record.case, record.baseline, attempts)
    report.add(Outcome.of(record.case, place, attempts, found, record.baseline))
    settle_in_place(report)
    report.notes += note_all(report)
    report.seconds = time.monotonic() - began
    report.save(again)
    return report


# Checks of the arguments: the command, the faults, and the numbers of ranks.

_PROCESSES = re.compile(r"--nproc[-_]per[-_]node(=(?P<ranks>.*))?")


def check_words(command: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command, with torchrun's number of processes in one word.

    Raises:
        ConfigurationError: there are none, or the program does not exist.
    """
    if isinstance(command, str) or not command:
        raise ConfigurationError(
            f"the command must be a list of words, but it is {command!r}.\nWrite it as in "
            'run(["python", "train.py"]), or after -- on the command line.'
        )
    words = [str(word) for word in command]
    program = shutil.which(words[0])
    if program is None:
        raise ConfigurationError(
            f"the program {words[0]!r} was not found.\nThe command is launched without a shell. Check the spelling and "
            "PATH."
        )
    if os.sep in words[0]:  # a relative path, and the command may be launched from another directory
        words[0] = str(Path(program).absolute())
    for place in range(len(words) - 2, 0, -1):
        known = _PROCESSES.fullmatch(words[place])
        if known and known["ranks"] is None:
            words[place : place + 2] = [f"{words[place]}={words[place + 1]}"]
    return tuple(words)


def check_kinds(faults: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the kinds of faults, without duplicates; nothing for None.

    Raises:
        ConfigurationError: a kind is unknown, or there is none.
    """
    if faults is None:
        return ()
    kinds = tuple(dict.fromkeys(faults.split(",") if isinstance(faults, str) else faults))
    if unknown := [str(kind) for kind in kinds if kind not in FAULTS]:
        raise ConfigurationError(f"unknown fault: {', '.join(unknown)}.\nUse {', '.join(FAULTS)}.")
    if not kinds:
        raise ConfigurationError(f"faults is empty, so nothing would be broken.\nUse {', '.join(FAULTS)}.")
    return kinds


def check_points(points: str | int | None, *, by_the_clock: bool) -> str | int:
    """Return "all", "auto", or the number of failpoints per kind of fault.

    Raises:
        ConfigurationError: it is anything else.
    """
    if points is None:
        return 0 if by_the_clock else "auto"
    if points == "all" or (isinstance(points, int) and not isinstance(points, bool) and points >= 0):
        return points
    raise ConfigurationError(
        f"points is {points!r}.\nIt is the number of failpoints per kind of fault: a whole number from 0, or "
        '"all". By default, there are as many cases as take a few minutes.'
    )


def choose_kinds(kinds: tuple[str, ...], survey: Survey) -> tuple[str, ...]:
    """Return the requested kinds, by default a kill of the training process and, if there are workers, of a worker."""
    return kinds or (("kill", "worker-kill") if survey.worker_points else ("kill",))


def check_amount(name: str, value: float, least: float, *, whole: bool = True) -> None:
    """Reject a number that is too small.

    Raises:
        ConfigurationError: it is.
    """
    fits = isinstance(value, int) if whole else isinstance(value, (int, float))
    if not fits or isinstance(value, bool) or not value >= least or (not whole and value <= 0):
        what = f"a whole number from {least}" if whole else "a number of seconds above 0"
        raise ConfigurationError(f"{name} is {value!r}.\nPass {what}.")


def choose_ranks(words: Sequence[str], ranks: int | None, resize: Sequence[int] | None) -> tuple[int, ...]:
    """Return the numbers of ranks of successive launches.

    Args:
        words: the command, which contains the number by default.
        ranks: for every launch.
        resize: for successive launches.

    Raises:
        ConfigurationError: they contradict each other, or the number cannot be passed to the command.
    """
    chosen = _choose(words, ranks, resize)
    for number in chosen:
        check_amount("a number of ranks", number, 1)
    told = any("{ranks}" in word or _ranks_in(word) for word in words)
    if not told and set(chosen) != {1}:
        raise ConfigurationError(
            f"{max(chosen)} ranks were requested, but the command does not contain a number of ranks to replace.\nIt "
            "would start as many as before. Use torchrun --nproc-per-node=N, or write {ranks} for the number."
        )
    return chosen


def _choose(words: Sequence[str], ranks: int | None, resize: Sequence[int] | None) -> tuple[int, ...]:
    if resize is None:
        own = next((found for word in words if (found := _ranks_in(word))), 1)
        return (own if ranks is None else ranks,)
    if not resize or (ranks is not None and ranks != resize[0]):
        raise ConfigurationError(
            f"ranks is {ranks}, but resize is {list(resize)}.\nresize lists the numbers of ranks of successive "
            "launches, and its first number must equal ranks. Pass only one of them, or the same number."
        )
    return tuple(resize)


def _ranks_in(word: str) -> int:
    """Return torchrun's number of processes, or 0 if a word does not contain it."""
    known = _PROCESSES.fullmatch(word)
    return int(known["ranks"]) if known and (known["ranks"] or "").isdigit() else 0
