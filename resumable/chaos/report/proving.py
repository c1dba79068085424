"""What a campaign that broke no promise may still not have proven: faults that did not come, starts from nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable.errors import ConfigurationError

if TYPE_CHECKING:
    from resumable.chaos.report.outcome import Outcome, Report

__all__ = ["check_resumed", "note_missed", "note_uncompared"]

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
    if notes and report.ok and not any(outcome.fired for outcome in report.outcomes):
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


def note_uncompared(report: Report) -> list[str]:
    """Say how many checkpoints were not compared, as no baseline run saved one at their step."""
    compared, uncompared = (sum(getattr(one, name) for one in report.outcomes) for name in ("compared", "uncompared"))
    if not uncompared:
        return []
    note = f"{uncompared} of {compared + uncompared} checkpoints were saved at steps at which no baseline run saved one"
    return [f"{note}: what is in them is not compared"]


def check_resumed(report: Report) -> None:
    """Refuse to call it a success that no start went on from a state.

    Raises:
        ConfigurationError: the command was started again, and none did.
    """
    again = sum(outcome.starts - 1 for outcome in report.outcomes)
    if report.ok and again and not any(outcome.resumed for outcome in report.outcomes):
        raise ConfigurationError(
            f"the command was started again {again} times, and never loaded the state of a loader.\nThat it resumes "
            "was not tested. If it saves loader.state_dict(), it has to load it; if every fault came before its first "
            "checkpoint, use more points."
        )
