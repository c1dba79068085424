"""A campaign: the unharmed run, the plan that is made from it, all cases, and what came out."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from resumable.chaos.checks import check
from resumable.chaos.control import drop_what_differs
from resumable.chaos.history import retrained
from resumable.chaos.plan import FAULTS, Case, Leg, Survey, exhaustive, pairs, randomly
from resumable.chaos.runner import Command, run_case
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from resumable.chaos.logs import Attempt

__all__ = ["Outcome", "Report", "check_kinds", "plan_cases", "run_campaign", "survey"]


@dataclass(frozen=True)
class Outcome:
    """One case, and what came out.

    Args:
        case: the faults.
        directory: with everything that was written down.
        attempts: what each start did.
        violations: what broke a promise, by the name of the check.
    """

    case: Case
    directory: Path
    attempts: Sequence[Attempt]
    violations: dict[str, str]

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return not self.violations

    @property
    def retrained(self) -> int:
        """Steps that were trained on again, as they were behind the last checkpoint."""
        return retrained(self.attempts)


@dataclass
class Report:
    """What came out of a campaign.

    Args:
        command: the user's.
        seed: of the plan.
        unharmed: the run without faults.
        notes: what is not compared, in words.
        outcomes: the cases, in the order of the plan.
    """

    command: Command
    seed: int
    unharmed: Attempt
    notes: list[str] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every promise was kept in every case."""
        return all(outcome.ok for outcome in self.outcomes)

    @property
    def failed(self) -> list[Outcome]:
        """The cases in which one was broken."""
        return [outcome for outcome in self.outcomes if not outcome.ok]


def survey(command: Command, directory: Path, ranks: tuple[int, ...]) -> tuple[Attempt, Survey, list[str]]:
    """Run the command unharmed, twice, and look what it comes by.

    Returns:
        What the first run did, without what differs in the second; its fault points; and what differs, in words.

    Raises:
        ConfigurationError: it fails by itself, or does not use this library.
    """
    attempt, again = (_run_unharmed(command, directory / str(number), ranks[0]) for number in range(2))
    notes = drop_what_differs(attempt, again)
    leader = attempt.ranks[min(attempt.ranks)]
    workers = max(attempt.workers, key=len, default=[])
    return attempt, Survey(leader.points, workers, leader.saved_at, ranks), notes


def _run_unharmed(command: Command, directory: Path, ranks: int) -> Attempt:
    (attempt,) = run_case(command, Case((Leg(None, ranks),)), directory)[:1]
    if attempt.status != 0 or attempt.killed:
        how = attempt.killed or f"its exit status is {attempt.status}"
        raise ConfigurationError(
            f"the command fails without any fault: {how}.\nNothing can be learnt from crashing it. It ran in "
            f"{directory}/work, unless {{dir}} is in the command; its last words:\n{attempt.output}"
        )
    if not any(log.batches for log in attempt.ranks.values()):
        raise ConfigurationError(
            "the command trained on no batch of a resumable loader.\nThere is nothing to watch. Wrap its loader with "
            "resumable.wrap(...), and run this with the Python that has resumable installed."
        )
    return attempt


def plan_cases(  # noqa: PLR0913  # what the command line offers
    survey: Survey, kinds: Sequence[str], points: str | int, *, pairs_: int, random_: int, seed: int
) -> list[Case]:
    """Choose the cases.

    Args:
        survey: of the unharmed run.
        kinds: of faults.
        points: "all", or how many moments of each kind.
        pairs_: number of cases of two faults.
        random_: number of cases at random moments.
        seed: of what is random.
    """
    limit = None if points == "all" else int(points)
    return [
        *exhaustive(survey, kinds, limit),
        *pairs(survey, kinds, seed, pairs_),
        *randomly(survey, kinds, seed + 1, random_),
    ]


def run_campaign(
    report: Report, cases: Iterable[Case], directory: Path, *, jobs: int, show: Callable[[Outcome], None]
) -> None:
    """Run cases side by side, and keep the directories of those that failed."""

    def run_one(numbered: tuple[int, Case]) -> Outcome:
        number, case = numbered
        place = directory / f"{number:04}"
        attempts = run_case(report.command, case, place)
        outcome = Outcome(case, place, attempts, check(case, report.unharmed, attempts))
        if outcome.ok:
            shutil.rmtree(place)
        return outcome

    with ThreadPoolExecutor(jobs) as pool:
        for outcome in pool.map(run_one, enumerate(cases, start=1)):
            report.outcomes.append(outcome)
            show(outcome)


def check_kinds(kinds: Sequence[str]) -> None:
    """Refuse faults that there are not.

    Raises:
        ConfigurationError: the message says which ones there are.
    """
    if unknown := [kind for kind in kinds if kind not in FAULTS]:
        raise ConfigurationError(f"there is no fault {', '.join(unknown)}.\nUse {', '.join(FAULTS)}.")
