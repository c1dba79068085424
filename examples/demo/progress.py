"""Runs experiments in parallel, and shows the progress of each."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress

from .harness import fork_servers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from resumable.chaos.launch.preload import Preload

    from .experiment import Comparison, Experiment

__all__ = ["run_all"]

_BEGAN = time.monotonic()
_COLUMNS = ("{task.description}", BarColumn(), MofNCompleteColumn(), "{task.fields[doing]}")


def run_all(experiments: Sequence[Experiment], jobs: int, console: Console) -> list[Comparison]:
    """Run experiments, several at a time.

    Args:
        experiments: what to run.
        jobs: how many at a time.
        console: shows the progress.

    Returns:
        The results, in the order of the experiments.

    Raises:
        ProcessError: a process failed on its own; the other experiments are stopped.
    """
    stop = Event()
    with ExitStack() as stack:
        preload = stack.enter_context(fork_servers())
        progress = stack.enter_context(Progress(*_COLUMNS, console=console, transient=True))
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        futures = [pool.submit(_run_one, experiment, preload, progress, stop) for experiment in experiments]
        try:
            return [future.result() for future in futures]
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


class _StoppedError(Exception):
    """Another experiment failed, or the user interrupted all of them."""


def _run_one(experiment: Experiment, preload: Preload, progress: Progress, stop: Event) -> Comparison:
    comparison = experiment.run(preload, _follow(experiment, progress, stop))
    kills = sum(not attempt.ended for attempt in comparison.attempts)
    word = "identical to" if comparison.verdict.identical else "DIFFERS from"
    _tell(progress, f"{experiment.source.label}: {word} the baseline run after {kills} kills")
    return comparison


def _follow(experiment: Experiment, progress: Progress, stop: Event) -> Callable[[str, int, int | None], None]:
    """Show the progress of an experiment: a bar on a terminal, otherwise a line for each process."""
    label = experiment.source.label
    task = progress.add_task(label, total=None, doing="baseline run")
    last = ""

    def watch(doing: str, count: int, total: int | None) -> None:
        nonlocal last
        if stop.is_set():
            raise _StoppedError
        progress.update(task, completed=count, total=total, doing=doing)
        if doing != last and not progress.console.is_terminal:
            _tell(progress, f"{label}: {doing}")
        last = doing

    return watch


def _tell(progress: Progress, text: str) -> None:
    progress.console.print(f"[{time.monotonic() - _BEGAN:.0f} s] {text}", markup=False)
