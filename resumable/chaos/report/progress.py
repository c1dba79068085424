"""Says how far a campaign is: a bar on a terminal, a line every ten seconds elsewhere, and one per case that failed."""

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

_ONCE_AND_AGAIN = 2.0  # starts per case: broken somewhere, and then to the end, each with all that a start imports
_WHOLE = 300.0  # seconds for a plan of which nothing else is said
_EVERY = 10.0  # seconds from one line to the next, at least
_WIDTH = 60


def affordable(seconds: float, jobs: int) -> int:
    """Return the number of cases that take some minutes.

    Args:
        seconds: that a baseline run takes.
        jobs: cases at a time.
    """
    return int(_WHOLE * jobs / (_ONCE_AND_AGAIN * seconds))


def describe_plan(cases: int, every: int, seconds: float, jobs: int) -> str:
    """Say how many cases there are, of how many there could be, and how long they may take.

    Args:
        cases: their number.
        every: their number with every fault at every moment.
        seconds: that a baseline run takes.
        jobs: cases at a time.
    """
    number = f"{cases} case{'s' * (cases != 1)}" + (f" of {every}" if cases < every else "")
    about = name_time(_ONCE_AND_AGAIN * seconds * cases / jobs)
    more = "; --points all runs them all" if cases < every else ""
    return f"A baseline run takes {seconds:.1f} s.\n" + fill(f"{number}; about {about}{more}.", _WIDTH)


@contextmanager
def follow(cases: int, tell: Callable[[str], None] | None) -> Iterator[Callable[[Outcome], None]]:
    """Show the progress: on standard error if that is a terminal, else by `tell`.

    Args:
        cases: their number.
        tell: is told in words what failed, and how far it is.

    Yields:
        To be called with each case's outcome.
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
    """Lines that say how far it is: after the first case, and then every ten seconds, if a case has come to its end."""

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
    """Name a time in a unit that fits."""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"
