"""The table: a row per kind of fault; and what is to be said below it."""

from __future__ import annotations

from itertools import zip_longest
from textwrap import indent, wrap
from typing import TYPE_CHECKING, NamedTuple

from resumable.chaos.report.text import describe_violations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable.chaos.plan import Case
    from resumable.chaos.report.outcome import Outcome, Report

__all__ = ["COLUMNS", "Row", "describe_result", "make_rows", "make_summary", "make_table", "name_kept"]

COLUMNS = ("fault", "cases", "faults fired", "starts", "steps retrained", "violations")
_HEAD = ("fault", "cases", "faults\nfired", "starts", "steps\nretrained", "violations")
_SHOWN = 20  # cases
_WIDTH = 60
_LONGEST = 12  # characters of a kind in a line


class Row(NamedTuple):
    """All cases of one kind of fault."""

    fault: str
    cases: int
    fired: str
    starts: int
    retrained: int
    violations: int


def make_rows(report: Report) -> list[Row]:
    """Make the rows, in the order of the plan, and that of all cases where there is more than one."""
    kinds: dict[str, list[Outcome]] = {name: [] for name in report.options.get("faults", ()) if _is_asked(report)}
    for outcome in report.outcomes:
        kinds.setdefault(name_kind(outcome.case), []).append(outcome)
    rows = [_make_row(name, outcomes) for name, outcomes in kinds.items()]
    return [*rows, _make_row("all", report.outcomes)] if len(rows) > 1 else rows


def _is_asked(report: Report) -> bool:
    """Return whether every kind of fault was to happen by itself: one without a case is to be seen then."""
    return bool(report.options.get("points"))


def name_kind(case: Case) -> str:
    """Name the kind of a case's faults."""
    faults = [leg.fault for leg in case.legs if leg.fault]
    if any(fault.after is not None for fault in faults):
        return "by the clock"
    return "no fault" if not faults else faults[0].kind + (" and more" if len(faults) > 1 else "")


def _make_row(name: str, outcomes: Sequence[Outcome]) -> Row:
    planned = sum(leg.fault is not None for outcome in outcomes for leg in outcome.case.legs)
    return Row(
        name,
        len(outcomes),
        f"{sum(outcome.fired for outcome in outcomes)} of {planned}",
        sum(outcome.starts for outcome in outcomes),
        sum(outcome.retrained for outcome in outcomes),
        sum(len(outcome.violations) for outcome in outcomes),
    )


def make_table(report: Report) -> str:
    """Make the table, as aligned text of at most 60 columns, as long as the numbers of cases have three digits."""
    head, *rows = [_lines_of(row) for row in (_HEAD, *make_rows(report))]
    widths = [max(map(len, column)) for column in zip(*head, *(line for row in rows for line in row), strict=True)]
    between = "  " if sum(widths) + 2 * len(widths) - 2 <= _WIDTH else " "
    rule = "-" * (sum(widths) + len(between) * (len(widths) - 1))
    lines = [_align(line, widths, between) for row in rows for line in row]
    return "\n".join([*(_align(line, widths, between) for line in head), rule, *lines])


def _lines_of(row: Sequence[object]) -> list[tuple[str, ...]]:
    """Return the lines of a row, the last of which has the numbers."""
    first, *others = map(str, row)
    columns = [wrap(first, _LONGEST)[::-1], *(text.split("\n")[::-1] for text in others)]
    return list(zip_longest(*columns, fillvalue=""))[::-1]


def _align(cells: Sequence[str], widths: Sequence[int], between: str) -> str:
    pairs = zip(cells, widths, strict=True)
    line = between.join(
        cell.rjust(width) if number else cell.ljust(width) for number, (cell, width) in enumerate(pairs)
    )
    return line.rstrip()


def make_summary(report: Report, shown: int = _SHOWN) -> str:
    """Make the table, what broke which promise in which case, and what was not compared.

    Args:
        report: of the campaign.
        shown: number of the cases that failed, at most.
    """
    parts = [make_table(report), *(_describe(outcome) for outcome in report.failed[:shown])]
    if len(report.failed) > shown > 0:
        parts.append(f"... and {len(report.failed) - shown} more cases that failed; report.json has all of them.")
    if report.notes:
        parts.append("\n".join(f"Note: {note}" for note in report.notes))
    return "\n\n".join([*parts, describe_result(report)])


def _describe(outcome: Outcome) -> str:
    violations = indent(describe_violations(outcome), "  ")
    return f"case {outcome.name}: {outcome.case}\n{violations}\n  again: {outcome.reproduction}"


def describe_result(report: Report) -> str:
    """Say in one line what came out, and in another what was compared."""
    count, failed = len(report.outcomes), len(report.failed)
    cases = f"{count} case" + "s" * (count != 1)
    result = f"a promise was broken in {failed} of {cases}" if failed else f"{name_kept(report)} in {cases}"
    if missed := sum(not outcome.reached for outcome in report.outcomes):
        result += f"; {missed} of {cases} did not reach the fault, which proves nothing"
    return f"{result[0].upper()}{result[1:]}. Seed {report.seed}, {report.seconds:.0f} s.\n{report.coverage}"


def name_kept(report: Report) -> str:
    """Say that every promise was kept that could be looked at."""
    return "every promise was kept" if report.ok else "every promise that could be compared was kept"
