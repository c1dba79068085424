"""Runs the experiments and prints the results."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from .digits import load_digits, write_digits
from .experiment import Comparison, Experiment
from .progress import run_all
from .table import make_table
from .timeline import draw_timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .options import Options

__all__ = ["run_demo"]

_WIDTH = 110  # columns, if the output is not a terminal


def run_demo(options: Options) -> int:
    """Run the demo.

    Returns:
        The exit status: 0 if all kills happened and each killed run equals the baseline run.
    """
    console, began = _make_console(), time.monotonic()
    options.output.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="runs-", dir=options.output))
    comparisons = run_all(_prepare(options, work), options.jobs, console)
    picture = options.output / "timeline.png"
    draw_timeline(comparisons, picture)
    identical = _report(console, comparisons)
    console.print(f"Picture: {picture}")
    console.print(f"Seed {options.seed}, {time.monotonic() - began:.0f} s.")
    if identical:
        shutil.rmtree(work)
    else:
        console.print(f"Ledgers, output and checkpoints of the processes: {work}")
    return 0 if identical else 1


def _make_console() -> Console:
    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=_WIDTH)


def _prepare(options: Options, work: Path) -> list[Experiment]:
    data = work / "digits.npz"
    write_digits(load_digits(), data)
    return [
        Experiment(source, data, work / f"{number}", options.kills, options.seed)
        for number, source in enumerate(options.sources)
    ]


def _report(console: Console, comparisons: Sequence[Comparison]) -> bool:
    """Print the table and the differences; return whether there were none."""
    console.print(make_table(comparisons))
    for source, _, _, verdict in comparisons:
        for difference in verdict.differences():
            console.print(f"{source.label}: {difference}", style="red", markup=False)
    different = sum(not comparison.verdict.identical for comparison in comparisons)
    kills = sum(not attempt.ended for comparison in comparisons for attempt in comparison.attempts)
    console.print(f"{len(comparisons)} runs, {kills} kills, {different} runs that differ from the baseline runs.")
    return different == 0
