"""The results of each case and of a campaign, and what they leave unproven."""

from __future__ import annotations

import platform
import shlex
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from resumable._version import __version__
from resumable.chaos.ledger import series_of
from resumable.chaos.verify.baseline import Coverage, cover, note_coverage, note_read
from resumable.chaos.verify.checks import ATOMIC
from resumable.chaos.verify.diagnosis import Diagnosis, diagnose
from resumable.chaos.verify.files import (
    find_elsewhere,
    find_extra,
    find_in_place,
    find_single,
    find_survived,
    note_files,
)
from resumable.chaos.verify.history import compared_files, count_compared, evaluating, retrained
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable.chaos.ledger import Attempt
    from resumable.chaos.plan import Case


__all__ = ["Outcome", "Results", "check_resumed", "note_all", "note_missed", "settle_in_place"]


_KEPT = 20  # passed and failed cases whose timeline is kept; the ledgers of failed ones are in their directories


_NOTHING = Diagnosis()


@dataclass(frozen=True)
class Outcome:
    """One case and its result.

    Args:
        case: the faults.
        directory: with all records; it exists only if a promise was broken.
        attempts: the record of each launch; empty in most cases of a large campaign.
        violations: from the name of a check to the reason why it failed.
        starts: number of launches.
        fired: number of faults that happened.
        retrained: steps after the last checkpoint, which were trained on again.
        resumed: number of launches that resumed from a state.
        diagnosis: the differences and the likely cause, if a promise was broken.
        compared: number of checkpoints that were compared with the baseline run.
        uncompared: number of those that were not, because no baseline run saved at their step.
        files: for each file that the script saved itself, whether its last content was compared, by path.
        in_place: files that were written in place and that a later launch read, and whether an older content was lost.
        survived: files that a launch left half-written, although the command still finished.
        unnamed: number of saves to no file or at an unknown step, which are not compared.
        read: files outside the directory that `torch.load` read.
        extra: files that the baseline run does not have, which are not compared.
        elsewhere: files that are not compared, because they are from a different step or from other ranks.
        single: values of logs that differ but do not count, because the last launch wrote them only once.
        evaluating: numbers of the loaders that are not trained on.
    """

    case: Case
    directory: Path
    attempts: Sequence[Attempt]
    violations: dict[str, str]
    starts: int = 0
    fired: int = 0
    retrained: int = 0
    resumed: int = 0
    diagnosis: Diagnosis = _NOTHING
    compared: int = 0
    uncompared: int = 0
    files: dict[str, bool] = field(default_factory=dict)
    in_place: dict[str, bool] = field(default_factory=dict)
    survived: frozenset[str] = frozenset()
    unnamed: int = 0
    read: frozenset[str] = frozenset()
    extra: frozenset[str] = frozenset()
    elsewhere: frozenset[str] = frozenset()
    single: frozenset[str] = frozenset()
    evaluating: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls,
        case: Case,
        directory: Path,
        attempts: Sequence[Attempt],
        violations: dict[str, str],
        baseline: Attempt | None = None,
    ) -> Self:
        """Create the outcome from the records of the launches."""
        fired = sum(attempt.fired for attempt in attempts)
        resumed = sum(any(log.loaded for log in attempt.ranks.values()) for attempt in attempts)
        read = frozenset[str]().union(*(attempt.read for attempt in attempts))
        held_out = evaluating(baseline, attempts)
        figures = (len(attempts), fired, retrained(attempts, held_out), resumed)
        made = cls(case, directory, attempts, violations, *figures, read=read, evaluating=held_out)
        return made if baseline is None else replace(made, **_compare(baseline, attempts, violations))

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return not self.violations

    @property
    def reached(self) -> bool:
        """Whether every fault that was planned at a failpoint happened; a case without its faults proves nothing."""
        return self.fired >= sum(fault.after is None for fault in self.case.faults)

    @property
    def name(self) -> str:
        """The number of the case in its campaign, as in its path."""
        return self.directory.name

    @property
    def reproduction(self) -> str:
        """The command line that runs this case again."""
        place = self.directory
        with suppress(ValueError):
            place = place.relative_to(Path.cwd())
        return shlex.join(["resumable", "chaos", "replay", str(place)])


def _compare(baseline: Attempt, attempts: Sequence[Attempt], violations: dict[str, str]) -> dict[str, Any]:
    """Return the results of the comparison with the baseline run."""
    compared, uncompared = count_compared(baseline, attempts)
    logs = [log for attempt in attempts for log in attempt.ranks.values()]
    return {
        "diagnosis": diagnose(baseline, attempts, violations),
        "compared": compared,
        "uncompared": uncompared,
        "files": compared_files(baseline, attempts),
        "in_place": find_in_place(baseline, attempts),
        "survived": frozenset(find_survived(attempts)),
        "unnamed": sum(log.unnamed + len(log.unplaced) for log in logs),
        "extra": find_extra(baseline, attempts),
        "elsewhere": find_elsewhere(baseline, attempts),
        "single": find_single(baseline, attempts),
    }


_PACKAGES = ("torch", "numpy", "lightning", "pytorch-lightning", "accelerate", "transformers")


def _find_environment() -> dict[str, str]:
    found = {"date": time.strftime("%Y-%m-%d %H:%M:%S %z"), "platform": platform.platform()}
    found |= {"python": platform.python_version(), "resumable": __version__}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


@dataclass
class Results:
    """The results of a campaign.

    Args:
        command: the words of the user's command.
        seed: of the plan.
        baseline: the run without faults.
        notes: what is not compared in every detail, in words.
        outcomes: the cases, in the order of the plan.
        directory: of the campaign.
        options: from name to argument of the campaign.
        seconds: duration.
        impossible: kinds of faults that cannot happen in this run, and why.
        ignore: patterns of files that are not compared.
        environment: date, machine and versions.
    """

    command: Sequence[str]
    seed: int
    baseline: Attempt
    notes: list[str] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    directory: Path | None = None
    options: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    impossible: dict[str, str] = field(default_factory=dict)
    ignore: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=_find_environment)

    @property
    def ok(self) -> bool:
        """Whether every promise was kept in every case and, if PyTorch trains a model, part of it was compared."""
        return self.status == 0

    @property
    def status(self) -> int:
        """The exit status: 0 kept, 1 a promise was broken, 3 kept, but nothing of the model was compared."""
        if self.failed:
            return 1
        return 3 if self.coverage.model is False else 0

    @property
    def coverage(self) -> Coverage:
        """The extent of the comparison."""
        saves = [sum(getattr(one, name) for one in self.outcomes) for name in ("compared", "uncompared")]
        if not self.outcomes:
            return cover(self.baseline)
        unseen = frozenset.intersection(*(outcome.elsewhere for outcome in self.outcomes))
        return cover(self.baseline, (saves[0], saves[1]), unseen)

    @property
    def failed(self) -> list[Outcome]:
        """The cases with a broken promise."""
        return [outcome for outcome in self.outcomes if not outcome.ok]

    @property
    def read(self) -> set[str]:
        """Files outside the cases that `torch.load` read."""
        return self.baseline.read.union(*(outcome.read for outcome in self.outcomes))

    def add(self, outcome: Outcome) -> None:
        """Add a case. If many others have the same result, its timeline is dropped."""
        alike = sum(other.ok == outcome.ok for other in self.outcomes)
        self.outcomes.append(outcome if alike < _KEPT else replace(outcome, attempts=()))


# Gaps that a campaign without broken promises may leave: faults that did not happen, resumes from nothing.

_SHOWN = 5  # cases


def note_missed(results: Results) -> list[str]:
    """Report planned faults that did not happen because the run ended first.

    Raises:
        ConfigurationError: no fault happened at all.
    """
    notes = [note for outcome in results.outcomes if (note := _note_clock(outcome))]
    if missed := [outcome for outcome in results.outcomes if not outcome.reached]:
        names = ", ".join(f"{outcome.name} ({outcome.case})" for outcome in missed[:_SHOWN])
        notes.append(
            f"not reached in {len(missed)} of {len(results.outcomes)} cases, which prove nothing: {names}"
            f"{', ...' if len(missed) > _SHOWN else ''}. The run passed fewer failpoints than the baseline run, as "
            "scripts that save by time may do"
        )
    if notes and not results.failed and not any(outcome.fired for outcome in results.outcomes):
        raise ConfigurationError(_why_none(results))
    return notes


def _note_clock(outcome: Outcome) -> str:
    times = [fault for fault in outcome.case.faults if fault.after is not None]
    if outcome.fired >= len(times):
        return ""
    return f"{outcome.fired} of {len(times)} failures by the clock happened before the run ended"


def _why_none(results: Results) -> str:
    faults = [fault for outcome in results.outcomes for fault in outcome.case.faults]
    first = next((fault for fault in faults if fault.after is not None), None)
    if first is None:
        return (
            f"no fault happened: the first was due as {faults[0]}, which no run reached.\nNothing was tested. The "
            "script must do the same in each run; for example, save every N steps instead of by time."
        )
    return (
        f"no failure happened: the first was due after {first.after:.1f} s, but the run had already ended.\n"
        "Nothing was tested. Use a smaller mtbf, a longer run, or a different seed."
    )


def note_all(results: Results) -> list[str]:
    """Report what was not compared, and which files outside the cases were read."""
    extra, elsewhere, single = (
        Counter(name for outcome in results.outcomes for name in getattr(outcome, field))
        for field in ("extra", "elsewhere", "single")
    )
    return [
        *note_coverage(results.coverage),
        *note_uncompared(results),
        *note_in_place(results),
        *note_files(results.baseline.left, extra, elsewhere, single, results.ignore),
        *note_read(results.read),
    ]


def note_uncompared(results: Results) -> list[str]:
    """Report how many checkpoints were not compared, because no baseline run saved at their step."""
    compared, uncompared = (sum(getattr(one, name) for one in results.outcomes) for name in ("compared", "uncompared"))
    notes = []
    if uncompared:
        of = f"{uncompared} of {compared + uncompared} checkpoints {'was' if uncompared == 1 else 'were'}"
        notes.append(f"{of} saved at a step at which no baseline run saved, and not compared")
    if unnamed := sum(outcome.unnamed for outcome in results.outcomes):
        notes.append(f"{unnamed} saves went to no file, or were made by another thread, and are not compared")
    return notes


def settle_in_place(results: Results) -> None:
    """Do not blame files written in place if a launch was seen to resume without them after they were half-written."""
    survived = frozenset[str]().union(*(outcome.survived for outcome in results.outcomes))
    results.outcomes[:] = [_settle(outcome, survived) for outcome in results.outcomes]


def _settle(outcome: Outcome, survived: frozenset[str]) -> Outcome:
    lost = {name for name, over in outcome.in_place.items() if over}
    if not lost or not lost <= survived:
        return outcome
    return replace(outcome, violations={name: text for name, text in outcome.violations.items() if name != ATOMIC})


def note_in_place(results: Results) -> list[str]:
    """Report files that are written under the name that is read on startup, although no older content is lost."""
    survived = frozenset[str]().union(*(outcome.survived for outcome in results.outcomes))
    files = [one for outcome in results.outcomes for one in outcome.in_place.items()]
    series = sorted({series_of(name) for name, over in files if not over or name in survived})
    return [
        f"{name} is written under the name that is read on startup: a kill during a save leaves an incomplete file, "
        "and the command must resume from an older one"
        for name in series
    ]


def check_resumed(results: Results) -> None:
    """Reject a campaign in which no launch resumed from a state.

    Raises:
        ConfigurationError: the command was restarted, but never resumed.
    """
    again = sum(outcome.starts - 1 for outcome in results.outcomes)
    if not results.failed and again and not any(outcome.resumed for outcome in results.outcomes):
        raise ConfigurationError(
            f"the command was restarted {again} times, but never loaded the state of a loader.\nSo resuming was not "
            "tested. If it saves loader.state_dict(), it must also load it; if every fault hit before its first "
            "checkpoint, use more points."
        )
