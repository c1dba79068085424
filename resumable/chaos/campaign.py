"""A campaign: the baseline run, the plan that is made from it, all cases, and what came out."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from resumable.chaos.launch.inventory import write_left
from resumable.chaos.launch.runner import run_case
from resumable.chaos.plan import Case, Leg, Survey, by_the_clock, exhaustive, limited, pairs, randomly
from resumable.chaos.report import Outcome, Report
from resumable.chaos.verify.baseline import drop_what_differs
from resumable.chaos.verify.checks import check
from resumable.chaos.verify.ranks import check_restarts
from resumable.chaos.verify.rounding import forgive_rounding
from resumable.chaos.verify.untestable import check_healthy, check_seen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from resumable.chaos.launch.reaper import Reaper
    from resumable.chaos.launch.runner import Command
    from resumable.chaos.recorder.attempts import Attempt

__all__ = ["Outcome", "Planned", "Report", "plan_cases", "run_campaign", "survey"]


def survey(
    command: Command, directory: Path, ranks: tuple[int, ...], reaper: Reaper | None = None
) -> tuple[Attempt, Survey, list[str]]:
    """Run the command without faults, twice, and look what it comes by.

    Args:
        command: the user's.
        directory: for the ledgers of the two runs.
        ranks: numbers of ranks of the starts, in turn.
        reaper: kills the processes where this one cannot do it any longer.

    Returns:
        What the first run did, without what differs in the second; its failpoints; and what differs, in words.

    Raises:
        ConfigurationError: it fails by itself, or does not use this library.
    """
    attempt, again = (_run_baseline(command, directory / str(number), ranks[0], reaper) for number in range(2))
    notes = drop_what_differs(attempt, again)
    leader = attempt.ranks[min(attempt.ranks)]
    notes += check_seen(leader, ranks)
    workers = max(attempt.workers, key=len, default=[])
    return attempt, Survey(leader.points, workers, leader.saved_at, ranks, leader.loaders), notes


def _run_baseline(command: Command, directory: Path, ranks: int, reaper: Reaper | None) -> Attempt:
    *before, attempt = run_case(command, Case((Leg(None, ranks),)), directory, reaper)
    check_healthy(attempt, directory)
    check_restarts(before)
    if attempt.left:
        write_left(attempt.left, directory)
    for name in ("work", "outside"):  # its ledgers, and what is written down of its files, are compared with
        shutil.rmtree(directory / name, ignore_errors=True)
    return attempt


class Planned(NamedTuple):
    """The cases of a campaign.

    Args:
        cases: in their order.
        number: of all that there would be with every fault at every moment.
    """

    cases: list[Case]
    number: int


def plan_cases(  # noqa: PLR0913  # what the command line offers
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
        points: "all", or how many moments of each kind; "auto" for as many cases as can be afforded.
        pairs_: number of cases of two faults.
        random_: number of cases at random moments.
        seed: of what is random.
        mtbf: mean time between failures in one more case; None for no such case.
        failures: their number.
        affordable: cases of "auto"; there are more where each kind of moment and of fault needs them.
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


def run_campaign(  # noqa: PLR0913  # what it needs of a campaign
    report: Report,
    cases: Iterable[Case],
    directory: Path,
    *,
    jobs: int,
    show: Callable[[Outcome], None],
    reaper: Reaper | None = None,
) -> None:
    """Run cases side by side, and keep the directories of those that failed.

    Args:
        report: gets the outcomes.
        cases: what is to go wrong.
        directory: for those of the cases.
        jobs: cases at a time.
        show: is called with each outcome as soon as it is known.
        reaper: kills the processes where this one cannot do it any longer.
    """

    def run_one(number: int, case: Case) -> Outcome:
        place = directory / f"{number:04}"
        attempts = run_case(report.command, case, place, reaper)
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
