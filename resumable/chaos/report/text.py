"""The timeline in words: one line per launch and rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from textwrap import indent, wrap
from typing import TYPE_CHECKING, NamedTuple

from resumable.chaos.ledger import RankLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from resumable.chaos.ledger import Attempt
    from resumable.chaos.plan import Case, Fault
    from resumable.chaos.verify.diagnosis import Diagnosis
    from resumable.chaos.verify.history import Key
    from resumable.chaos.verify.outcome import Outcome, Results


__all__ = [
    "COLUMNS",
    "Line",
    "Row",
    "as_ranges",
    "describe_differences",
    "describe_result",
    "describe_violations",
    "make_rows",
    "make_summary",
    "make_table",
    "make_timeline",
    "name_step",
    "shorten",
    "tell",
    "tell_lines",
    "told",
]


_SHOWN = 10  # cases
_RANGES = 12  # ranges of steps, or checkpoints, in one line
_LINES = 12  # lines of a process's output
_HEADING = "Steps are epoch.step, both counted from 0. A checkpoint has the number of the last step before it."


def told(report: Results) -> list[Outcome]:
    """Choose the cases to describe: the first ones that failed, or the first ones of all."""
    return [outcome for outcome in report.failed or report.outcomes if outcome.attempts][:_SHOWN]


def make_timeline(report: Results) -> str:
    """Describe the cases that failed, or the first ones."""
    outcomes = told(report)
    words = ["case FAILED", "cases FAILED"] if report.failed else ["case, which passed", "cases, all passed"]
    count, of = len(outcomes), len(report.failed or report.outcomes)
    which = f"{of} {words[of != 1]}" + (
        f"; the first {count} are shown, and report.json has all of them" if count < of else ""
    )
    missing = [] if report.failed or report.ok else [f"Nothing of the model was compared. {report.coverage}"]
    return "\n".join([*missing, f"{which}. {_HEADING}", *(_tell_case(outcome) for outcome in outcomes)])


def _tell_case(outcome: Outcome) -> str:
    lines = [f"\ncase {outcome.name}: {outcome.case}"]
    if not outcome.ok:
        lines += [indent(describe_violations(outcome), "  "), f"  again: {outcome.reproduction}"]
    return "\n".join([*lines, *(f"  {line}" for line in tell_lines(outcome))])


def describe_violations(outcome: Outcome) -> str:
    """Describe the likely cause, the broken promises, and what differs."""
    lines = [f"{name}: {shorten(text)}" for name, text in outcome.violations.items()]
    return "\n".join([*_describe_cause(outcome.diagnosis), *lines, *describe_differences(outcome.diagnosis)])


def _describe_cause(found: Diagnosis) -> Iterator[str]:
    if found.text:
        yield f"likely cause: {found.text}"
    if found.trial:
        yield f"tried: {found.trial}"


def describe_differences(found: Diagnosis) -> Iterator[str]:
    """Describe which parts and files differ, and which are equal."""
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
        words.append("{}, but {} in the baseline run".format(*found.values[path]))
    return f"{path} ({'; '.join(words)})" if words else path


def shorten(text: str) -> str:
    """Return the first line of a text, and the end of the others, which a process printed."""
    first, *lines = text.rstrip().split("\n")
    left_out = ["  ..."] if len(lines) > _LINES else []
    return "\n".join([first, *left_out, *(f"  {line}" for line in lines[-_LINES:])])


def tell_lines(outcome: Outcome) -> list[str]:
    """Describe what each rank did in each launch, one line each."""
    lines = tell(outcome.case, outcome.attempts, outcome.evaluating)
    names = [f"launch {line.start}, rank {line.rank} of {line.world}" for line in lines]
    width = max(map(len, names), default=0)
    return [f"{name:{width}}  {_tell(line)}" for name, line in zip(names, lines, strict=True)]


def _tell(line: Line) -> str:
    words = ["restarted by the agent"] if line.restarted else []
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
        words.append(f"saved at {_few('the start' if key is None else name_step(key) for key in line.saves)}")
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


# The table, with a row per kind of fault, and the summary.

COLUMNS = ("fault", "cases", "faults fired", "launches", "steps retrained", "violations")
_HEAD = ("fault", "cases", "faults\nfired", "launches", "steps\nretrained", "violations")
_ROWS_SHOWN = 20  # cases
_WIDTH = 80
_LONGEST = 12  # characters of a fault's name in a line


class Row(NamedTuple):
    """All cases of one kind of fault."""

    fault: str
    cases: int
    fired: str
    starts: int
    retrained: int
    violations: int


def make_rows(report: Results) -> list[Row]:
    """Create the rows in the order of the plan, and a row for all cases if there is more than one."""
    kinds: dict[str, list[Outcome]] = {name: [] for name in report.options.get("faults", ()) if _is_asked(report)}
    for outcome in report.outcomes:
        kinds.setdefault(name_kind(outcome.case), []).append(outcome)
    rows = [_make_row(name, outcomes) for name, outcomes in kinds.items()]
    return [*rows, _make_row("all", report.outcomes)] if len(rows) > 1 else rows


def _is_asked(report: Results) -> bool:
    """Return whether every kind of fault was requested; then kinds without a case are listed as well."""
    return bool(report.options.get("points"))


def name_kind(case: Case) -> str:
    """Return the name of the kind of a case's faults."""
    if any(fault.after is not None for fault in case.faults):
        return "by the clock"
    return case.faults[0].kind + (" and more" if len(case.faults) > 1 else "") if case.faults else "no fault"


def _make_row(name: str, outcomes: Sequence[Outcome]) -> Row:
    planned = sum(len(outcome.case.faults) for outcome in outcomes)
    return Row(
        name,
        len(outcomes),
        f"{sum(outcome.fired for outcome in outcomes)} of {planned}",
        sum(outcome.starts for outcome in outcomes),
        sum(outcome.retrained for outcome in outcomes),
        sum(len(outcome.violations) for outcome in outcomes),
    )


def make_table(report: Results) -> str:
    """Create the table, as aligned text of at most 80 columns unless there are 1,000 cases or more."""
    head, *rows = [_lines_of(row) for row in (_HEAD, *make_rows(report))]
    widths = [max(map(len, column)) for column in zip(*head, *(line for row in rows for line in row), strict=True)]
    between = "  " if sum(widths) + 2 * len(widths) - 2 <= _WIDTH else " "
    rule = "-" * (sum(widths) + len(between) * (len(widths) - 1))
    lines = [_align(line, widths, between) for row in rows for line in row]
    return "\n".join([*(_align(line, widths, between) for line in head), rule, *lines])


def _lines_of(row: Sequence[object]) -> list[tuple[str, ...]]:
    """Return the lines of a row; the last one contains the numbers."""
    first, *others = map(str, row)
    columns = [wrap(first, _LONGEST)[::-1], *(text.split("\n")[::-1] for text in others)]
    return list(zip_longest(*columns, fillvalue=""))[::-1]


def _align(cells: Sequence[str], widths: Sequence[int], between: str) -> str:
    pairs = zip(cells, widths, strict=True)
    line = between.join(
        cell.rjust(width) if number else cell.ljust(width) for number, (cell, width) in enumerate(pairs)
    )
    return line.rstrip()


def make_summary(report: Results, shown: int = _ROWS_SHOWN) -> str:
    """Create the result, the table, the broken promises of each case, and the list of what was not compared.

    Args:
        report: of the campaign.
        shown: maximum number of failed cases.
    """
    parts = [describe_result(report), make_table(report), *(_describe(outcome) for outcome in report.failed[:shown])]
    if len(report.failed) > shown > 0:
        parts.append(f"... and {len(report.failed) - shown} more failed cases; report.json has all of them.")
    if report.notes:
        parts.append("\n".join(f"Note: {note}" for note in report.notes))
    return "\n\n".join(parts)


def _describe(outcome: Outcome) -> str:
    violations = indent(describe_violations(outcome), "  ")
    return f"case {outcome.name}: {outcome.case}\n{violations}\n  again: {outcome.reproduction}"


def describe_result(report: Results) -> str:
    """Describe the result in one line, and what was compared in another."""
    count, failed = len(report.outcomes), len(report.failed)
    cases = f"{count} case" + "s" * (count != 1)
    kept = "every promise was kept" if report.ok else "every promise that could be compared was kept"
    result = f"a promise was broken in {failed} of {cases}" if failed else f"{kept} in {cases}"
    word = "FAILED" if failed else "PASSED" if report.ok else "WARNING"
    if missed := sum(not outcome.reached for outcome in report.outcomes):
        result += f"; {missed} of {cases} did not reach the fault, which proves nothing"
    return f"{word}: {result}. Seed {report.seed}, {report.seconds:.0f} s.\n{report.coverage}"


# The history of a rank in one launch of the command, for texts and pictures.

_SAVES = {"store.saved", "lightning.save"}
_BY_ITSELF = {"torch.save.written"}  # for scripts with none of those


@dataclass(frozen=True)
class Line:
    """One rank of one launch.

    Args:
        start: number of the launch.
        rank: of the process.
        world: number of ranks.
        resized: number of ranks of the previous launch, if it differs.
        again: steps that an earlier launch had trained on.
        trained: the other steps.
        evaluated: steps of the loaders that are not trained on.
        saves: the last step before each checkpoint; None if there was none.
        struck: whether the fault happened in this process.
        end: how it ended, in words.
        unacknowledged: steps that were delivered but not acknowledged, which a resume repeats by design.
        restarted: whether an agent in the command started it.
    """

    start: int
    rank: int
    world: int
    resized: int | None
    again: tuple[Key, ...]
    trained: tuple[Key, ...]
    saves: tuple[Key | None, ...]
    struck: bool
    end: str
    unacknowledged: tuple[Key, ...] = ()
    restarted: bool = False
    evaluated: tuple[Key, ...] = ()


def tell(case: Case, attempts: Sequence[Attempt], evaluating: frozenset[int] = frozenset()) -> list[Line]:
    """Return what each rank did in each launch.

    Args:
        case: the faults.
        attempts: the record of each launch.
        evaluating: numbers of the loaders that are not trained on.
    """
    lines: list[Line] = []
    seen: set[Key] = set()
    worlds = [_world(case, attempt) for attempt in attempts]
    for attempt, world, before in zip(attempts, worlds, [None, *worlds], strict=False):
        fault = case.launches[attempt.launch].fault if attempt.fired and attempt.launch < len(case.launches) else None
        resized = before if before != world else None
        for rank, log in sorted(attempt.ranks.items()) or [(0, RankLog(0, world))]:
            every = list(log.trained())
            steps = [key for key in every if key[0] not in evaluating]
            evaluated = tuple(key for key in every if key[0] in evaluating)
            again = tuple(key for key in steps if key in seen)
            trained = tuple(key for key in steps if key not in seen)
            struck = fault is not None and _hits(fault, rank)
            end = _end(attempt, fault, struck=struck)
            line = Line(attempt.number, rank, world, resized, again, trained, _saves(log), struck, end)
            line = replace(line, unacknowledged=tuple(log.unacknowledged()), evaluated=evaluated)
            lines.append(replace(line, restarted=attempt.restarts > 0))
        seen.update(attempt.trained())
    return lines


def _hits(fault: Fault, rank: int) -> bool:
    return fault.after is not None or fault.target == "all" or (fault.target != "agent" and fault.rank == rank)


def _world(case: Case, attempt: Attempt) -> int:
    planned = case.launches[min(attempt.launch, len(case.launches) - 1)].ranks
    return max((log.world for log in attempt.ranks.values()), default=planned)


def _saves(log: RankLog) -> tuple[Key | None, ...]:
    saves: list[Key | None] = []
    keys, handed = list(log.batches), 0
    points = _SAVES if _SAVES & set(log.points) else _BY_ITSELF
    for point in log.points:
        handed += point == "loader.handed"
        if point in points:
            saves.append(keys[min(handed, len(keys)) - 1] if handed and keys else None)
    return tuple(saves if points is _SAVES else dict.fromkeys(saves))


def _end(attempt: Attempt, fault: Fault | None, *, struck: bool) -> str:
    words = [str(fault) if struck or fault.target == "agent" else "the fault hit another rank"] if fault else []
    if attempt.killed and not (fault and fault.after is not None):
        words.append(f"killed: {attempt.killed}")
    elif attempt.status is None:
        words += [] if struck else ["ended by the agent"]
    elif attempt.status == 0 and not attempt.killed:
        words.append("finished")
    elif fault is None:
        words.append(f"failed with status {attempt.status}")
    return ", ".join(words)


def as_ranges(keys: Iterable[Key]) -> list[tuple[Key, Key]]:
    """Combine consecutive steps of one epoch and loader into ranges: the first and the last step of each."""
    ordered = sorted(keys)
    if not ordered:
        return []
    gaps = [number for number, (one, other) in enumerate(pairwise(ordered), start=1) if not _follows(one, other)]
    return [(ordered[first], ordered[last - 1]) for first, last in pairwise([0, *gaps, len(ordered)])]


def _follows(one: Key, other: Key) -> bool:
    return (one[0], one[1].epoch, one[1].step + 1) == (other[0], other[1].epoch, other[1].step)


def name_step(key: Key) -> str:
    """Return `epoch.step`, both counted from 0, with the loader unless it is the first."""
    loader, place = key
    return f"{place.epoch}.{place.step - 1}" + (f" of loader {loader}" if loader else "")
