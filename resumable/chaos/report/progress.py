"""Shows the progress of a campaign: a bar on a terminal, otherwise a line every 10 s; and a line per failed case."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from textwrap import fill
from time import monotonic
from typing import TYPE_CHECKING

from tqdm import tqdm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable.chaos.report import Outcome

__all__ = ["affordable", "describe_plan", "follow"]

_ONCE_AND_AGAIN = 2.0  # launches per case: one with a fault, and one to the end, each with all of its imports
_WHOLE = 180.0  # seconds for the default plan; with the baseline runs, less than four minutes
_EVERY = 10.0  # minimum seconds between two lines
_WIDTH = 60


def affordable(seconds: float, jobs: int) -> int:
    """Return the number of cases that take a few minutes.

    Args:
        seconds: duration of a baseline run.
        jobs: cases at the same time.
    """
    return int(_WHOLE * jobs / (_ONCE_AND_AGAIN * seconds))


def describe_plan(cases: int, every: int, seconds: float, jobs: int) -> str:
    """Describe how many cases there are, how many there could be, and how long they may take.

    Args:
        cases: their number.
        every: their number with every fault at every failpoint.
        seconds: duration of a baseline run.
        jobs: cases at the same time.
    """
    number = f"{cases} case{'s' * (cases != 1)}" + (f" of {every}" if cases < every else "")
    about = name_time(_ONCE_AND_AGAIN * seconds * cases / jobs)
    more = "; --points all runs them all" if cases < every else ""
    return f"A baseline run takes {seconds:.1f} s.\n" + fill(f"{number}; about {about}{more}.", _WIDTH)


@contextmanager
def follow(cases: int, tell: Callable[[str], None] | None) -> Iterator[Callable[[Outcome], None]]:
    """Show the progress: on standard error if that is a terminal, otherwise through `tell`.

    Args:
        cases: their number.
        tell: called with the failures and the progress.

    Yields:
        A function to call with each case's outcome.
    """
    lines = _Lines(cases, tell) if tell and not sys.stderr.isatty() else None
    with tqdm(total=cases, unit="case", disable=None, leave=False, dynamic_ncols=True) as bar:
        failed = 0

        def show(outcome: Outcome) -> None:
            nonlocal failed
            failed += not outcome.ok
            bar.set_postfix_str(f"{failed} failed", refresh=False)
            bar.update()
            if tell and not outcome.ok:
                with bar.external_write_mode():
                    tell(f"case {outcome.name}: {outcome.case}: {', '.join(outcome.violations)}")
            if lines:
                lines.add(failed)

        yield show


class _Lines:
    """Progress lines: after the first case, then every 10 s, whenever a case ends."""

    def __init__(self, cases: int, tell: Callable[[str], None]) -> None:
        self._cases, self._tell = cases, tell
        self._done = 0
        self._begun, self._told = monotonic(), float("-inf")

    def add(self, failed: int) -> None:
        self._done += 1
        now = monotonic()
        if now - self._told < _EVERY or self._done == self._cases:
            return
        self._told = now
        left = name_time((now - self._begun) / self._done * (self._cases - self._done))
        self._tell(f"{self._done} of {self._cases} cases, {failed} failed; {left} left")


def name_time(seconds: float) -> str:
    """Format a duration in a suitable unit."""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"
