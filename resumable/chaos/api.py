"""The two things that one can ask for: a campaign, and one of its cases again."""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import ExitStack
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
from resumable.chaos.launch.preload import Preload, check_preload
from resumable.chaos.launch.reaper import Reaper
from resumable.chaos.launch.runner import Command, run_case
from resumable.chaos.plan import FAULTS, aim, note_sizes, note_targets
from resumable.chaos.report import Outcome, Report
from resumable.chaos.report.outcome import check_resumed, note_all, note_missed, settle_in_place
from resumable.chaos.report.progress import affordable, describe_plan, follow
from resumable.chaos.verify.baseline import forgive_rounding
from resumable.chaos.verify.checks import check
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resumable.chaos.plan import Case, Survey


__all__ = ["check_kinds", "check_points", "check_words", "choose_ranks", "replay", "run"]


def run(  # noqa: PLR0913  # each is an option of the command line, too
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
    """Break a training command on purpose, start it again, and compare it with two runs in which nothing is broken.

    Args:
        command: its words. It runs in a fresh directory, so that relative paths lead to fresh checkpoints; or, where a
            word has `{dir}` in it, in this directory, and `{dir}` is the fresh one. What it writes elsewhere by Python
            is redirected into its directory and listed in the notes; nothing outside of it is changed.
        faults: their kinds, of `resumable.chaos.FAULTS`. None for `kill`, and `worker-kill` where there are workers.
        points: at how many moments each kind happens; "all" for every one. None for as many cases as take some
            minutes, and at least one for each kind of moment; with `mtbf`, for none.
        pairs: number of cases of two faults, the second while the run recovers from the first.
        random: number of cases of one to three faults at random moments.
        mtbf: mean time between failures in seconds: one more case, in which the command is killed at random times.
        failures: their number.
        seed: of all that is random, and of which moment stands for others of its kind.
        ranks: number of ranks; None for what the command says itself. It replaces `{ranks}` in the command, and the
            number of `--nproc-per-node=`.
        resize: numbers of ranks of the first start, the second one and so on.
        jobs: cases at a time.
        directory: for the cases that failed and the report. What the campaign before left there is removed.
        patience: seconds without any sign of life after which a start is killed.
        grace: seconds from SIGTERM to SIGKILL.
        limit: seconds for one start.
        preload: modules, such as torch, that are imported once for all starts of a Python program: each is forked
            from a process that has imported them, which saves seconds. It runs in every other way as if it had been
            started by itself; but processes that it starts in sessions of their own and forks are not seen.
        ignore: patterns of files that are not compared, by their paths in the work folder; `*` stands for any
            characters, and a folder for all that is in it.
        tell: is told in words what happens; None for nothing but a bar, on a terminal.

    Returns:
        What came out. `report.ok` is True if every promise was kept and, where torch trains a model, something of the
        model was compared; `report.status` is the exit status of the command line, and `report.coverage` says what
        was compared.

    Raises:
        ConfigurationError: the options cannot work, or the command cannot be tested: it fails by itself, uses no
            loader of resumable, trains on other data each time, or goes on from a real run outside of its directory.
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
        ours = Command(words, patience, grace, limit, preloaded, patterns)
        root = stack.enter_context(claim(Path(directory)))
        reaper = stack.enter_context(Reaper())
        write_record(root, ours, seed, starts)
        if tell:
            tell("Two baseline runs come first, to see what there is to break and to compare with.")
        baseline, found, notes = survey(ours, root / BASELINE, starts, reaper)
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
        report = Report(ours, seed, baseline, notes, directory=root, options=options, impossible=impossible)
        if tell:
            tell(describe_plan(len(cases), every, each, jobs))
        show = stack.enter_context(follow(len(cases), tell))
        run_campaign(report, cases, root, jobs=jobs, show=show, reaper=reaper)
        settle_in_place(report)
        report.notes += [*note_missed(report), *note_all(report)]
        check_resumed(report)
        report.seconds = time.monotonic() - began
        report.save(root)
    return report


def _find_impossible(found: Survey, kinds: Sequence[str], points: str | int, cases: Sequence[Case]) -> dict[str, str]:
    """Find the kinds of faults that cannot happen in this run, and say why.

    Raises:
        ConfigurationError: there is no case at all.
    """
    impossible = {kind: why for kind in kinds if (why := found.reason(kind))} if points else {}
    if not cases:
        told = "; ".join(f"{kind}: {why}" for kind, why in impossible.items()) or "none was asked for"
        raise ConfigurationError(
            f"there is no case to run: {told}.\nNothing would be tested. Use other faults, a script that saves "
            "checkpoints and has workers, or points, pairs, random or mtbf above 0."
        )
    return impossible


def replay(directory: str | Path, *, tell: Callable[[str], None] | None = None) -> Report:
    """Run a case of a campaign again, with the same command and the same faults.

    Args:
        directory: of the case, as the report names it. What is written goes to `replay` in it.
        tell: is told in words what happens.

    Returns:
        What came out: a report of this case alone.

    Raises:
        ConfigurationError: there is no such case, or its command cannot be found.
    """
    began = time.monotonic()
    place = Path(directory).absolute()
    record = read_record(place)
    again = place / "replay"
    remove_case(again)
    if tell:
        tell(f"Case {place.name} once more: {record.case}.")
    with Reaper() as reaper:
        attempts = run_case(record.command, record.case, again, reaper)
    forgive_rounding(record.baseline, attempts)
    report = Report(record.command, record.seed, record.baseline, record.notes, directory=again)
    found = check(record.case, record.baseline, attempts)
    report.add(Outcome.of(record.case, place, attempts, found, record.baseline))
    settle_in_place(report)
    report.notes += note_all(report)
    report.seconds = time.monotonic() - began
    report.save(again)
    return report


# What the user asks for, checked: the command, the faults, and the numbers of ranks.

_PROCESSES = re.compile(r"--nproc[-_]per[-_]node(=(?P<ranks>.*))?")


def check_words(command: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command, with torchrun's number of processes in one word.

    Raises:
        ConfigurationError: there are none, or the program is not there.
    """
    if isinstance(command, str) or not command:
        raise ConfigurationError(
            f"the command has to be a list of its words, but it is {command!r}.\nWrite it as in "
            'run(["python", "train.py"]), or after -- on the command line.'
        )
    words = [str(word) for word in command]
    program = shutil.which(words[0])
    if program is None:
        raise ConfigurationError(
            f"there is no program {words[0]!r}.\nThe command is started as it stands, without a shell. Check its "
            "spelling and PATH."
        )
    if os.sep in words[0]:  # a path from here, and the command may be started elsewhere
        words[0] = str(Path(program).absolute())
    for place in range(len(words) - 2, 0, -1):
        known = _PROCESSES.fullmatch(words[place])
        if known and known["ranks"] is None:
            words[place : place + 2] = [f"{words[place]}={words[place + 1]}"]
    return tuple(words)


def check_kinds(faults: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the kinds of faults, each once; nothing where None are named.

    Raises:
        ConfigurationError: the message says which ones there are.
    """
    if faults is None:
        return ()
    kinds = tuple(dict.fromkeys(faults.split(",") if isinstance(faults, str) else faults))
    if unknown := [str(kind) for kind in kinds if kind not in FAULTS]:
        raise ConfigurationError(f"there is no fault {', '.join(unknown)}.\nUse {', '.join(FAULTS)}.")
    if not kinds:
        raise ConfigurationError(f"no kind of fault is named, so nothing would be broken.\nUse {', '.join(FAULTS)}.")
    return kinds


def check_points(points: str | int | None, *, by_the_clock: bool) -> str | int:
    """Return "all", "auto", or the number of moments for each kind of fault.

    Raises:
        ConfigurationError: it is something else.
    """
    if points is None:
        return 0 if by_the_clock else "auto"
    if points == "all" or (isinstance(points, int) and not isinstance(points, bool) and points >= 0):
        return points
    raise ConfigurationError(
        f"points is {points!r}.\nIt says at how many moments each kind of fault happens: a whole number from 0, or "
        '"all" for every one. Left out, there are cases for some minutes.'
    )


def choose_kinds(kinds: tuple[str, ...], survey: Survey) -> tuple[str, ...]:
    """Return the kinds that were named; where none were, a kill of the training process, and one of a worker."""
    return kinds or (("kill", "worker-kill") if survey.worker_points else ("kill",))


def check_amount(name: str, value: float, least: float, *, whole: bool = True) -> None:
    """Refuse a number that is too small.

    Raises:
        ConfigurationError: the message has the value, and the least one.
    """
    fits = isinstance(value, int) if whole else isinstance(value, (int, float))
    if not fits or isinstance(value, bool) or not value >= least or (not whole and value <= 0):
        what = f"a whole number from {least}" if whole else "a number of seconds above 0"
        raise ConfigurationError(f"{name} is {value!r}.\nGive {what}.")


def choose_ranks(words: Sequence[str], ranks: int | None, resize: Sequence[int] | None) -> tuple[int, ...]:
    """Return the numbers of ranks to start with, in turn.

    Args:
        words: the command; where nothing else is said, it says the number itself.
        ranks: for every start.
        resize: for the first start, the second one and so on.

    Raises:
        ConfigurationError: they contradict each other, or the command cannot be told them.
    """
    chosen = _choose(words, ranks, resize)
    for number in chosen:
        check_amount("a number of ranks", number, 1)
    told = any("{ranks}" in word or _ranks_in(word) for word in words)
    if not told and set(chosen) != {1}:
        raise ConfigurationError(
            f"{max(chosen)} ranks are asked for, but nothing in the command says how many it starts.\nIt would start "
            "as many as ever. Use torchrun --nproc-per-node=N, or write {ranks} where the number belongs."
        )
    return chosen


def _choose(words: Sequence[str], ranks: int | None, resize: Sequence[int] | None) -> tuple[int, ...]:
    if resize is None:
        own = next((found for word in words if (found := _ranks_in(word))), 1)
        return (own if ranks is None else ranks,)
    if not resize or (ranks is not None and ranks != resize[0]):
        raise ConfigurationError(
            f"ranks is {ranks}, and resize is {list(resize)}.\nresize has the numbers of ranks of the starts in turn, "
            "the first of which is ranks. Give one of them, or the same number."
        )
    return tuple(resize)


def _ranks_in(word: str) -> int:
    """Return torchrun's number of processes, or 0 where a word does not say it."""
    known = _PROCESSES.fullmatch(word)
    return int(known["ranks"]) if known and (known["ranks"] or "").isdigit() else 0
