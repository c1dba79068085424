"""Launches training processes, kills them as planned, and relaunches them until one finishes."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from resumable.chaos.launch.group import Group
from resumable.chaos.launch.preload import Preload

from .attempt import Attempt, read_attempt
from .ledger import read_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .catalogue import Source
    from .plan import Kill

__all__ = ["ProcessError", "Run", "fork_servers", "run_to_end"]

_SHOWN = 2000  # characters of a failed process's output
_TIME_LIMIT = 300.0  # seconds for one process
_VARIABLE = "RESUMABLE_DEMO"  # environment variable that identifies the launched processes
_SLOW = ("torch", "torch._dynamo", "resumable.backends.torch", f"{__package__}.sources")
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class ProcessError(RuntimeError):
    """A process failed on its own, or left others running."""


@contextmanager
def fork_servers() -> Iterator[Preload]:
    """Start the fork servers; they import torch in the meantime, which takes seconds."""
    with Preload(_SLOW, _ONE_THREAD) as preload:
        yield preload


@dataclass(frozen=True)
class Run:
    """A training run, shared by its processes.

    Args:
        source: the source, and its training program.
        data: file of the digits.
        directory: for checkpoints, ledgers and output; it is created.
        preload: forks the processes.
        first: number of the fork server of the first process. The servers alternate, so a process resumes in a
            different interpreter than the one in which the previous one was killed.
        watch: called with each attempt's number and record, whenever it makes progress.
    """

    source: Source
    data: Path
    directory: Path
    preload: Preload
    first: int
    watch: Callable[[int, Attempt], None]

    def ledger(self, number: int) -> Path:
        """Return the path of an attempt's ledger."""
        return self.directory / f"attempt-{number}.jsonl"

    def output(self, number: int) -> Path:
        """Return the path of an attempt's output."""
        return self.directory / f"attempt-{number}.txt"

    def start(self, number: int) -> Group:
        """Start the process of an attempt."""
        paths = {"data": self.data, "checkpoints": self.directory / "checkpoints", "ledger": self.ledger(number)}
        options = [f"--make={self.source.make}", *(f"--{name}={path.absolute()}" for name, path in paths.items())]
        words = [sys.executable, "-m", self.source.program, *options]
        output, server = self.output(number).absolute(), self.preload.server(self.first + number)
        server.load(self.source.preloaded)
        mark = {_VARIABLE: str(output)}
        return Group(words, Path.cwd(), mark, output, preload=server, variable=_VARIABLE)


def run_to_end(run: Run, kills: Sequence[Kill]) -> list[Attempt]:
    """Launch a process for each planned kill, then one more without a kill.

    Returns:
        The record of each process; fewer than planned if one finished before its kill.

    Raises:
        ProcessError: a process failed on its own.
    """
    run.directory.mkdir(parents=True)
    attempts: list[Attempt] = []
    for kill in [*kills, None]:
        _run_once(run, len(attempts), kill)
        attempts.append(read_attempt(run.ledger(len(attempts))))
        if attempts[-1].ended:
            break
    return attempts


def _run_once(run: Run, number: int, kill: Kill | None) -> None:
    watch = _Watch(run, number, kill)
    with run.start(number) as group:
        status, killed = group.wait(watch)
        if watch.due:
            return
        if status == 0 and (orphans := group.orphans()):
            raise ProcessError(f"the processes {orphans} were still running after the end of process {number}")
    if status != 0:
        said = run.output(number).read_text(errors="replace")[-_SHOWN:]
        how = killed or f"failed with status {status}"
        raise ProcessError(f"the training process {number} with {run.source.make} {how}:\n{said}")


class _Watch:
    """Follows a process through its ledger, and decides when to kill it.

    Attributes:
        due: whether the planned kill was due.
    """

    def __init__(self, run: Run, number: int, kill: Kill | None) -> None:
        self._run, self._number, self._kill = run, number, kill
        self._attempt, self._offset, self._limit = Attempt(), 0, time.monotonic() + _TIME_LIMIT
        self.due = False

    def __call__(self) -> str:
        events, self._offset = read_events(self._run.ledger(self._number), self._offset)
        if self._kill is not None and any(map(self._kill.is_due, events)):
            self._run.watch(self._number, self._attempt)
            time.sleep(self._kill.delay)
            self.due = True
            return "was killed as planned"
        for event in events:
            self._attempt.add(event)
        if events:
            self._run.watch(self._number, self._attempt)
        return f"took more than {_TIME_LIMIT:.0f} s" if time.monotonic() > self._limit else ""
