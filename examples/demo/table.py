"""The table: a row per source, with a line per kill."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from rich import box
from rich.markup import escape
from rich.table import Table

from .verdict import count_retrained

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .attempt import Attempt
    from .experiment import Comparison

__all__ = ["make_table"]

_COLUMNS = (
    "killed\nat",
    "resumed\nat",
    "batches\nretrained",
    "same\nstream",
    "same\nscores",
    "same\nweights",
    "state\nbytes",
    "cold\nms",
    "resumed\nms",
)
_CAPTION = (
    "Positions are epoch.step: the epoch, and how many of its batches are in the weights.\n"
    "Scores are from the evaluation after each epoch. Weights are compared bit for bit.\n"
    "Milliseconds count from loading the state to the first batch;\n"
    "cold is the same time in the uninterrupted run."
)


def make_table(comparisons: Iterable[Comparison]) -> Table:
    """Create the table."""
    table = Table(
        title="Killed with SIGKILL and resumed, compared with a baseline run",
        caption=_CAPTION,
        box=box.HORIZONTALS,
        padding=0,
    )
    table.add_column("source", max_width=22)
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for comparison in comparisons:
        table.add_row(*_cells(comparison), end_section=True)
    return table


def _cells(comparison: Comparison) -> list[str]:
    verdict, attempts = comparison.verdict, comparison.attempts
    return [
        escape(comparison.source.label),
        "\n".join(str(attempt.stopped) for attempt in attempts if not attempt.ended),
        "\n".join(str(attempt.begun) for attempt in attempts[1:]),
        str(count_retrained(attempts)),
        *map(_yes_or_no, (verdict.stream, verdict.evaluations, verdict.weights)),
        str(max(attempt.state_bytes for attempt in attempts)),
        _first_batch([comparison.baseline]),
        _first_batch(attempts[1:]),
    ]


def _yes_or_no(difference: str) -> str:
    return "[bold red]no" if difference else "[green]yes"


def _first_batch(attempts: Iterable[Attempt]) -> str:
    """Return the median of the milliseconds to the first batch."""
    known = [attempt.milliseconds for attempt in attempts if attempt.milliseconds is not None]
    return f"{median(known):.0f}" if known else ""
