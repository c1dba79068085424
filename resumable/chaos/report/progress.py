"""Says how far a campaign is: a bar with the remaining time on a terminal, and a line per case that failed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tqdm import tqdm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable.chaos.report import Outcome

__all__ = ["follow"]

_ONCE_AND_AGAIN = 1.5  # starts per case, roughly, in the time of a baseline run: broken somewhere, and then to the end


@contextmanager
def follow(
    cases: int, seconds: float, jobs: int, tell: Callable[[str], None] | None
) -> Iterator[Callable[[Outcome], None]]:
    """Show the progress on standard error if that is a terminal.

    Args:
        cases: their number.
        seconds: that a baseline run takes.
        jobs: cases at a time.
        tell: is told in words how long it may take, and what failed.

    Yields:
        To be called with each case's outcome.
    """
    if tell:
        about = _ONCE_AND_AGAIN * seconds * cases / jobs
        tell(f"A baseline run takes {seconds:.1f} s; {cases} case{'s' * (cases != 1)} may take {name_time(about)}.")
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

        yield show


def name_time(seconds: float) -> str:
    """Name a time in a unit that fits."""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"
