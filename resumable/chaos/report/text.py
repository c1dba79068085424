"""The timeline in words: a line per start and rank."""

from __future__ import annotations

from textwrap import indent
from typing import TYPE_CHECKING

from resumable.chaos.report.story import as_ranges, name_step, tell

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from resumable.chaos.report.outcome import Outcome, Report
    from resumable.chaos.report.story import Line
    from resumable.chaos.verify.diagnosis import Diagnosis
    from resumable.chaos.verify.history import Key

__all__ = ["describe_violations", "make_timeline", "tell_lines", "told"]

_SHOWN = 10  # cases
_RANGES = 12  # of steps, or checkpoints, in one line
_LINES = 12  # of what a process printed
_HEADING = "Steps are epoch.step, both counted from 0; a checkpoint is named by the last step before it."


def told(report: Report) -> list[Outcome]:
    """Choose the cases to tell of: the first of those that failed, or of all."""
    return [outcome for outcome in report.failed or report.outcomes if outcome.attempts][:_SHOWN]


def make_timeline(report: Report) -> str:
    """Describe the cases that failed, or the first ones."""
    outcomes = told(report)
    words = ["case FAILED", "cases FAILED"] if report.failed else ["case, it passed", "cases, all passed"]
    count, of = len(outcomes), len(report.failed or report.outcomes)
    which = f"{of} {words[of != 1]}" + (
        f"; here are the first {count}, and report.json has all of them" if count < of else ""
    )
    missing = [] if report.failed or report.ok else [f"Nothing of the model was compared. {report.coverage}"]
    return "\n".join([*missing, f"{which}. {_HEADING}", *(_tell_case(outcome) for outcome in outcomes)])


def _tell_case(outcome: Outcome) -> str:
    lines = [f"\ncase {outcome.name}: {outcome.case}"]
    if not outcome.ok:
        lines += [indent(describe_violations(outcome), "  "), f"  again: {outcome.reproduction}"]
    return "\n".join([*lines, *(f"  {line}" for line in tell_lines(outcome))])


def describe_violations(outcome: Outcome) -> str:
    """Say what broke which promise, with the likely cause; of what a process printed, the end."""
    lines = [f"{name}: {_shorten(text)}" for name, text in outcome.violations.items()]
    return "\n".join([*lines, *_describe_diagnosis(outcome.diagnosis)])


def _describe_diagnosis(found: Diagnosis) -> Iterator[str]:
    if found.text:
        yield f"likely cause: {found.text}"
    if found.trial:
        yield f"tried: {found.trial}"
    if found.differing:
        yield f"differ: {_few(_name_part(found, path) for path in found.differing)}"
    if found.files:
        yield f"files that differ: {_few(found.files)}"
    if found.equal:
        yield f"equal: {_few(found.equal)}"


def _name_part(found: Diagnosis, path: str) -> str:
    is_late = found.differing[path] > min(found.differing.values())
    words = [f"from step {found.differing[path]}"] if is_late else []
    if path in found.values:
        words.append("{}, and {} in the baseline run".format(*found.values[path]))
    return f"{path} ({'; '.join(words)})" if words else path


def _shorten(text: str) -> str:
    first, *lines = text.rstrip().split("\n")
    left_out = ["  ..."] if len(lines) > _LINES else []
    return "\n".join([first, *left_out, *(f"  {line}" for line in lines[-_LINES:])])


def tell_lines(outcome: Outcome) -> list[str]:
    """Return what each rank did in each start, a line for each."""
    lines = tell(outcome.case, outcome.attempts, outcome.evaluating)
    names = [f"start {line.start}, rank {line.rank} of {line.world}" for line in lines]
    width = max(map(len, names), default=0)
    return [f"{name:{width}}  {_tell(line)}" for name, line in zip(names, lines, strict=True)]


def _tell(line: Line) -> str:
    words = ["started again by the agent"] if line.restarted else []
    if line.resized:
        words.append(f"resized from {line.resized}")
    if line.again:
        words.append(f"trained again {_name_ranges(line.again)}")
    if line.trained:
        words.append(f"trained {_name_ranges(line.trained)}")
    if not line.again and not line.trained:
        words.append("trained nothing")
    if line.evaluated:
        words.append(f"evaluated {_name_ranges(line.evaluated)}")
    if line.unacknowledged:
        words.append(f"delivered, not acknowledged: {_name_ranges(line.unacknowledged)}")
    if line.saves:
        words.append(f"saved at {_few('the beginning' if key is None else name_step(key) for key in line.saves)}")
    return "; ".join(filter(None, [*words, line.end]))


def _name_ranges(keys: Iterable[Key]) -> str:
    return _few(
        name_step(first) if first == last else f"{first[1].epoch}.{first[1].step - 1}-{name_step(last)}"
        for first, last in as_ranges(keys)
    )


def _few(names: Iterable[str]) -> str:
    every = list(names)
    middle = ["..."] if len(every) > _RANGES else []
    half = _RANGES // 2
    return ", ".join([*every[:half], *middle, *every[-half:]] if middle else every)
