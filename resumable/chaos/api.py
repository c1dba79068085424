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
from resumable.chaos.options import check_amount, check_kinds, check_points, check_words, choose_kinds, choose_ranks
from resumable.chaos.record import read_record, write_record
from resumable.chaos.report import Outcome, Report
from resumable.chaos.report.progress import affordable, describe_plan, follow
from resumable.chaos.report.proving import check_resumed, note_all, note_missed, settle_in_place
from resumable.chaos.targets import aim, note_sizes, note_targets
from resumable.chaos.verify.checks import check
from resumable.chaos.verify.rounding import forgive_rounding
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resumable.chaos.plan import Case, Survey

__all__ = ["replay", "run"]


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
