"""What came out of each case and of a campaign, and what that leaves unproven."""

from __future__ import annotations

import shlex
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from resumable.chaos.recorder.saves import series_of
from resumable.chaos.verify.baseline import Coverage, cover, note_coverage, note_outside
from resumable.chaos.verify.checks import ATOMIC
from resumable.chaos.verify.diagnosis import Diagnosis, diagnose
from resumable.chaos.verify.files import find_elsewhere, find_extra, find_in_place, find_survived, note_files
from resumable.chaos.verify.history import compared_files, count_compared, evaluating, retrained
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable.chaos.launch.runner import Command
    from resumable.chaos.plan import Case
    from resumable.chaos.recorder.ledger import Attempt


__all__ = ["Outcome", "Results", "check_resumed", "note_all", "note_missed", "settle_in_place"]


_KEPT = 20  # cases of either end whose timeline is kept; ledgers of those that failed are in their directories


_NOTHING = Diagnosis()


@dataclass(frozen=True)
class Outcome:
    """One case, and what came out.

    Args:
        case: the faults.
        directory: with everything that was written down; there only if a promise was broken.
        attempts: what each start did; empty in most cases of a large campaign.
        violations: what broke a promise, by the name of the check.
        starts: their number.
        fired: number of faults that happened.
        retrained: steps that were trained on again, as they were after the last checkpoint.
        resumed: number of starts that went on from a state.
        diagnosis: where one was broken, what differs, and the likely cause.
        compared: number of checkpoints that were compared with those of the baseline run.
        uncompared: of those that were not, as no baseline run saved one at their step.
        files: of each file that the script saved by itself, whether what it held last was compared, by its path.
        in_place: files that were written in place and read by a later start; whether an older content was lost by that.
        survived: files of which a start left one half, and from which the command came to its end all the same.
        unnamed: number of saves to no file, and of those at no known step, which are not compared.
        written: what was redirected into the case's directory, by its own path.
        read: files outside of it that `torch.load` read.
        extra: files that it left and the baseline run did not, which are compared with nothing.
        elsewhere: files that are not compared, as they are of another step than in the baseline run, or of other ranks.
        evaluating: numbers of the loaders from which nothing is trained.
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
    written: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()
    extra: frozenset[str] = frozenset()
    elsewhere: frozenset[str] = frozenset()
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
        """Make the outcome of what each start did."""
        fired = sum(attempt.fired for attempt in attempts)
        resumed = sum(any(log.loaded for log in attempt.ranks.values()) for attempt in attempts)
        written = frozenset[str]().union(*(attempt.written for attempt in attempts))
        read = frozenset[str]().union(*(attempt.read for attempt in attempts))
        held_out = evaluating(baseline, attempts)
        figures = (len(attempts), fired, retrained(attempts, held_out), resumed)
        made = cls(case, directory, attempts, violations, *figures, written=written, read=read, evaluating=held_out)
        return made if baseline is None else replace(made, **_compare(baseline, attempts, violations))

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return not self.violations

    @property
    def reached(self) -> bool:
        """Whether every fault happened that was planned at a point; one that did not proves nothing."""
        return self.fired >= sum(fault.after is None for fault in self.case.faults)

    @property
    def name(self) -> str:
        """The number of the case in its campaign, as it is in paths."""
        return self.directory.name

    @property
    def reproduction(self) -> str:
        """The command line that runs this case again."""
        place = self.directory
        with suppress(ValueError):
            place = place.relative_to(Path.cwd())
        return shlex.join(["resumable", "chaos", "replay", str(place)])


def _compare(baseline: Attempt, attempts: Sequence[Attempt], violations: dict[str, str]) -> dict[str, Any]:
    """Return what is known of an outcome beside the baseline run."""
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
    }


@dataclass
class Results:
    """What came out of a campaign.

    Args:
        command: the user's.
        seed: of the plan.
        baseline: the run without faults.
        notes: what is not compared in every detail, in words.
        outcomes: the cases, in the order of the plan.
        directory: of the campaign.
        options: what was asked for, by name.
        seconds: that it took.
        impossible: kinds of faults that cannot happen in this run, and why.
    """

    command: Command
    seed: int
    baseline: Attempt
    notes: list[str] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    directory: Path | None = None
    options: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    impossible: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every promise was kept in every case; and, where torch trains a model, one on the model was made."""
        return self.status == 0

    @property
    def status(self) -> int:
        """The exit status: 0 kept, 1 a promise was broken, 3 kept, and nothing of the model was compared."""
        if self.failed:
            return 1
        return 3 if self.coverage.model is False else 0

    @property
    def coverage(self) -> Coverage:
        """What was compared, and what was not."""
        saves = [sum(getattr(one, name) for one in self.outcomes) for name in ("compared", "uncompared")]
        if not self.outcomes:
            return cover(self.baseline)
        unseen = frozenset.intersection(*(outcome.elsewhere for outcome in self.outcomes))
        return cover(self.baseline, (saves[0], saves[1]), unseen)

    @property
    def failed(self) -> list[Outcome]:
        """The cases in which one was broken."""
        return [outcome for outcome in self.outcomes if not outcome.ok]

    @property
    def outside(self) -> tuple[set[str], set[str]]:
        """What was redirected into the directories of the runs, and what was read outside of them, by their paths."""
        runs: list[Attempt | Outcome] = [self.baseline, *self.outcomes]
        return set().union(*(run.written for run in runs)), set().union(*(run.read for run in runs))

    def add(self, outcome: Outcome) -> None:
        """Add a case; of one more that came out as many others did, only the figures."""
        alike = sum(other.ok == outcome.ok for other in self.outcomes)
        self.outcomes.append(outcome if alike < _KEPT else replace(outcome, attempts=()))


# What a campaign that broke no promise may still not have proven: faults that did not come, starts from nothing.

_SHOWN = 5  # cases


def note_missed(results: Results) -> list[str]:
    """Say which planned faults did not happen: the run was over before they were due.

    Raises:
        ConfigurationError: nothing else was to happen.
    """
    notes = [note for outcome in results.outcomes if (note := _note_clock(outcome))]
    if missed := [outcome for outcome in results.outcomes if not outcome.reached]:
        names = ", ".join(f"{outcome.name} ({outcome.case})" for outcome in missed[:_SHOWN])
        notes.append(
            f"not reached in {len(missed)} of {len(results.outcomes)} cases, which prove nothing: {names}"
            f"{', ...' if len(missed) > _SHOWN else ''}. The run came by fewer points than the baseline run, as one "
            "that saves by the time may"
        )
    if notes and not results.failed and not any(outcome.fired for outcome in results.outcomes):
        raise ConfigurationError(_why_none(results))
    return notes


def _note_clock(outcome: Outcome) -> str:
    times = [fault for fault in outcome.case.faults if fault.after is not None]
    if outcome.fired >= len(times):
        return ""
    return f"{outcome.fired} of {len(times)} failures by the clock happened; then the run ended"


def _why_none(results: Results) -> str:
    faults = [fault for outcome in results.outcomes for fault in outcome.case.faults]
    first = next((fault for fault in faults if fault.after is not None), None)
    if first is None:
        return (
            f"no fault happened: the first was due as {faults[0]}, and no run came by it.\nNothing was tested. Let the "
            "script do the same in each run, such as save after so many steps and not by the time."
        )
    return (
        f"no failure happened: the first was due after {first.after:.1f} s, and the run had ended by then.\n"
        "Nothing was tested. Use a smaller mtbf, a longer run, or another seed."
    )


def note_all(results: Results) -> list[str]:
    """Say what was not compared, and what is outside of the runs' directories."""
    extra, elsewhere = (
        Counter(name for outcome in results.outcomes for name in getattr(outcome, field))
        for field in ("extra", "elsewhere")
    )
    return [
        *note_coverage(results.coverage),
        *note_uncompared(results),
        *note_in_place(results),
        *note_files(results.baseline.left, extra, elsewhere, results.command.ignore),
        *note_outside(*results.outside),
    ]


def note_uncompared(results: Results) -> list[str]:
    """Say how many checkpoints were not compared, as no baseline run saved one at their step."""
    compared, uncompared = (sum(getattr(one, name) for one in results.outcomes) for name in ("compared", "uncompared"))
    notes = []
    if uncompared:
        of = f"{uncompared} of {compared + uncompared} checkpoints {'was' if uncompared == 1 else 'were'}"
        notes.append(f"{of} saved at a step at which no baseline run saved one: not compared")
    if unnamed := sum(outcome.unnamed for outcome in results.outcomes):
        notes.append(f"{unnamed} saves went to no file, or came from another thread: what is in them is not compared")
    return notes


def settle_in_place(results: Results) -> None:
    """Blame no file that is written in place if the command was seen to go on without it, when half of it was there."""
    survived = frozenset[str]().union(*(outcome.survived for outcome in results.outcomes))
    results.outcomes[:] = [_settle(outcome, survived) for outcome in results.outcomes]


def _settle(outcome: Outcome, survived: frozenset[str]) -> Outcome:
    lost = {name for name, over in outcome.in_place.items() if over}
    if not lost or not lost <= survived:
        return outcome
    return replace(outcome, violations={name: text for name, text in outcome.violations.items() if name != ATOMIC})


def note_in_place(results: Results) -> list[str]:
    """Say which files are written under the names by which they are read, though no older content is lost by that."""
    survived = frozenset[str]().union(*(outcome.survived for outcome in results.outcomes))
    files = [one for outcome in results.outcomes for one in outcome.in_place.items()]
    series = sorted({series_of(name) for name, over in files if not over or name in survived})
    return [
        f"{name} is written under the name by which it is read at the start: a kill within a save leaves a part of it, "
        "which cannot be read, and the command has to go on from an older one"
        for name in series
    ]


def check_resumed(results: Results) -> None:
    """Refuse to call it a success that no start went on from a state.

    Raises:
        ConfigurationError: the command was started again, and none did.
    """
    again = sum(outcome.starts - 1 for outcome in results.outcomes)
    if not results.failed and again and not any(outcome.resumed for outcome in results.outcomes):
        raise ConfigurationError(
            f"the command was started again {again} times, and never loaded the state of a loader.\nThat it resumes "
            "was not tested. If it saves loader.state_dict(), it has to load it; if every fault came before its first "
            "checkpoint, use more points."
        )
