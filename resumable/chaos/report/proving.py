"""What a campaign that broke no promise may still not have proven: faults that did not come, starts from nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from resumable.chaos.recorder.saves import series_of
from resumable.chaos.verify.checks import ATOMIC
from resumable.chaos.verify.coverage import note_coverage
from resumable.chaos.verify.files import note_files
from resumable.chaos.verify.untestable import note_outside
from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from resumable.chaos.report.outcome import Outcome, Report

__all__ = ["check_resumed", "note_all", "note_missed", "settle_in_place"]

_SHOWN = 5  # cases


def note_missed(report: Report) -> list[str]:
    """Say which planned faults did not happen: the run was over before they were due.

    Raises:
        ConfigurationError: nothing else was to happen.
    """
    notes = [note for outcome in report.outcomes if (note := _note_clock(outcome))]
    if missed := [outcome for outcome in report.outcomes if not outcome.reached]:
        names = ", ".join(f"{outcome.name} ({outcome.case})" for outcome in missed[:_SHOWN])
        notes.append(
            f"not reached in {len(missed)} of {len(report.outcomes)} cases, which prove nothing: {names}"
            f"{', ...' if len(missed) > _SHOWN else ''}. The run came by fewer points than the baseline run, as one "
            "that saves by the time may"
        )
    if notes and not report.failed and not any(outcome.fired for outcome in report.outcomes):
        raise ConfigurationError(_why_none(report))
    return notes


def _note_clock(outcome: Outcome) -> str:
    times = [leg for leg in outcome.case.legs if leg.fault and leg.fault.after is not None]
    if outcome.fired >= len(times):
        return ""
    return f"{outcome.fired} of {len(times)} failures by the clock happened; then the run ended"


def _why_none(report: Report) -> str:
    faults = [leg.fault for outcome in report.outcomes for leg in outcome.case.legs if leg.fault]
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


def note_all(report: Report) -> list[str]:
    """Say what was not compared, and what is outside of the runs' directories."""
    extra, elsewhere = (
        Counter(name for outcome in report.outcomes for name in getattr(outcome, field))
        for field in ("extra", "elsewhere")
    )
    return [
        *note_coverage(report.coverage),
        *note_uncompared(report),
        *note_in_place(report),
        *note_files(report.baseline.left, extra, elsewhere, report.command.ignore),
        *note_outside(*report.outside),
    ]


def note_uncompared(report: Report) -> list[str]:
    """Say how many checkpoints were not compared, as no baseline run saved one at their step."""
    compared, uncompared = (sum(getattr(one, name) for one in report.outcomes) for name in ("compared", "uncompared"))
    notes = []
    if uncompared:
        of = f"{uncompared} of {compared + uncompared} checkpoints {'was' if uncompared == 1 else 'were'}"
        notes.append(f"{of} saved at a step at which no baseline run saved one: not compared")
    if unnamed := sum(outcome.unnamed for outcome in report.outcomes):
        notes.append(f"{unnamed} saves went to no file, or came from another thread: what is in them is not compared")
    return notes


def settle_in_place(report: Report) -> None:
    """Blame no file that is written in place if the command was seen to go on without it, when half of it was there."""
    survived = frozenset[str]().union(*(outcome.survived for outcome in report.outcomes))
    report.outcomes[:] = [_settle(outcome, survived) for outcome in report.outcomes]


def _settle(outcome: Outcome, survived: frozenset[str]) -> Outcome:
    lost = {name for name, over in outcome.in_place.items() if over}
    if not lost or not lost <= survived:
        return outcome
    return replace(outcome, violations={name: text for name, text in outcome.violations.items() if name != ATOMIC})


def note_in_place(report: Report) -> list[str]:
    """Say which files are written under the names by which they are read, though no older content is lost by that."""
    survived = frozenset[str]().union(*(outcome.survived for outcome in report.outcomes))
    files = [one for outcome in report.outcomes for one in outcome.in_place.items()]
    series = sorted({series_of(name) for name, over in files if not over or name in survived})
    return [
        f"{name} is written under the name by which it is read at the start: a kill within a save leaves a part of it, "
        "which cannot be read, and the command has to go on from an older one"
        for name in series
    ]


def check_resumed(report: Report) -> None:
    """Refuse to call it a success that no start went on from a state.

    Raises:
        ConfigurationError: the command was started again, and none did.
    """
    again = sum(outcome.starts - 1 for outcome in report.outcomes)
    if not report.failed and again and not any(outcome.resumed for outcome in report.outcomes):
        raise ConfigurationError(
            f"the command was started again {again} times, and never loaded the state of a loader.\nThat it resumes "
            "was not tested. If it saves loader.state_dict(), it has to load it; if every fault came before its first "
            "checkpoint, use more points."
        )
