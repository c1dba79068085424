"""The two things that one can ask for: a campaign, and one of its cases again."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable.chaos.campaign import plan_cases, run_campaign, survey
from resumable.chaos.claim import BASELINE, claim, remove_case
from resumable.chaos.launch.preload import Preload, check_preload
from resumable.chaos.launch.reaper import Reaper
from resumable.chaos.launch.runner import Command, run_case
from resumable.chaos.options import check_amount, check_kinds, check_points, check_words, choose_ranks
from resumable.chaos.record import read_record, write_record
from resumable.chaos.report import Outcome, Report
from resumable.chaos.report.progress import follow
from resumable.chaos.report.proving import check_resumed, note_missed, note_uncompared
from resumable.chaos.verify.checks import check
from resumable.chaos.verify.untestable import note_outside
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resumable.chaos.plan import Case, Survey

__all__ = ["replay", "run"]


def run(  # noqa: PLR0913  # each is an option of the command line, too
    command: Sequence[str],
    *,
    faults: str | Sequence[str] = ("kill",),
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
    tell: Callable[[str], None] | None = None,
) -> Report:
    """Break a training command on purpose, start it again, and compare it with two runs in which nothing is broken.

    Args:
        command: its words. It runs in a fresh directory, so that relative paths lead to fresh checkpoints; or, where a
            word has `{dir}` in it, in this directory, and `{dir}` is the fresh one. What it writes elsewhere by Python
            is redirected into its directory and listed in the notes; nothing outside of it is changed.
        faults: their kinds, of `resumable.chaos.FAULTS`.
        points: at how many moments each kind happens, evenly spread; "all" for every one, which is what None means
            without `mtbf`.
        pairs: number of cases of two faults, the second while the run recovers from the first.
        random: number of cases of one to three faults at random moments.
        mtbf: mean time between failures in seconds: one more case, in which the command is killed at random times.
        failures: their number.
        seed: of all that is random.
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
        tell: is told in words what happens; None for nothing but a bar, on a terminal.

    Returns:
        What came out.

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
        ours = Command(words, patience, grace, limit, stack.enter_context(Preload(modules)) if modules else None)
        root = stack.enter_context(claim(Path(directory)))
        reaper = stack.enter_context(Reaper())
        write_record(root, ours, seed, starts)
        if tell:
            tell("Two baseline runs come first, to see what there is to break and to compare with.")
        baseline, found, notes = survey(ours, root / BASELINE, starts, reaper)
        each = (time.monotonic() - began) / 2
        cases = plan_cases(
            found, kinds, limit_of_points, pairs_=pairs, random_=random, seed=seed, mtbf=mtbf, failures=failures
        )
        impossible = _find_impossible(found, kinds, limit_of_points, cases)
        notes += [f"no case of {kind}: {why}" for kind, why in impossible.items()]
        options: dict[str, Any] = {
            "faults": kinds,
            "points": limit_of_points,
            "pairs": pairs,
            "random": random,
            "mtbf": mtbf,
        }
        options |= {"failures": failures, "ranks": starts, "jobs": jobs}
        report = Report(ours, seed, baseline, notes, directory=root, options=options, impossible=impossible)
        show = stack.enter_context(follow(len(cases), each, jobs, tell))
        run_campaign(report, cases, root, jobs=jobs, show=show, reaper=reaper)
        report.notes += [*note_missed(report), *note_uncompared(report), *note_outside(*report.outside)]
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
    report = Report(record.command, record.seed, record.baseline, record.notes, directory=again)
    found = check(record.case, record.baseline, attempts)
    report.add(Outcome.of(record.case, place, attempts, found, record.baseline))
    report.notes += [*note_uncompared(report), *note_outside(*report.outside)]
    report.seconds = time.monotonic() - began
    report.save(again)
    return report
