"""Starts training processes, kills them when planned, and starts them again until one comes to the end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resumable.demo.attempt import Attempt, read_attempt
from resumable.demo.ledger import read_events
from resumable.demo.processes import ProcessError, ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from resumable.demo.catalogue import Source
    from resumable.demo.plan import Kill
    from resumable.demo.processes import Nursery

__all__ = ["Run", "run_to_end"]

_POLL = 0.001  # seconds
_SHOWN = 2000  # characters of a failed process's output
_TIME_LIMIT = 300.0  # seconds for one process


@dataclass(frozen=True)
class Run:
    """A training run: what its processes have in common.

    Args:
        source: what is trained from, and by which program.
        data: file of the digits.
        directory: for checkpoints, ledgers and output; it is made.
        nurseries: start the processes, in turn, so that a resumed one comes from another interpreter than the killed.
        watch: is called with each attempt's number and what it did so far, whenever it did something.
    """

    source: Source
    data: Path
    directory: Path
    nurseries: Sequence[Nursery]
    watch: Callable[[int, Attempt], None]

    def ledger(self, number: int) -> Path:
        """Return the path of an attempt's ledger."""
        return self.directory / f"attempt-{number}.jsonl"

    def output(self, number: int) -> Path:
        """Return the path of what an attempt prints."""
        return self.directory / f"attempt-{number}.txt"

    def start(self, number: int) -> ProcessGroup:
        """Start the process of an attempt."""
        paths = {"data": self.data, "checkpoints": self.directory / "checkpoints", "ledger": self.ledger(number)}
        options = [f"--make={self.source.make}", *(f"--{name}={path.absolute()}" for name, path in paths.items())]
        nursery = self.nurseries[number % len(self.nurseries)]
        return ProcessGroup(nursery, [self.source.program, *options], self.output(number))


def run_to_end(run: Run, kills: Sequence[Kill]) -> list[Attempt]:
    """Start a process for each planned kill, and then one more that is left in peace.

    Returns:
        What each process did. Fewer than planned where one came to its end before its kill.

    Raises:
        ProcessError: a process failed by itself.
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
    with run.start(number) as process:
        if _watch(run, number, process, kill):
            return
        if process.status == 0:
            process.wait_for_members()
            return
        how = f"failed with status {process.status}" if process.status else f"took more than {_TIME_LIMIT:.0f} s"
        said = run.output(number).read_text(errors="replace")[-_SHOWN:]
        raise ProcessError(f"the training process {number} with {run.source.make} {how}:\n{said}")


def _watch(run: Run, number: int, process: ProcessGroup, kill: Kill | None) -> bool:
    """Follow a process until it is to be killed, or until it ended; tell whether it is to be killed."""
    attempt, offset, limit = Attempt(), 0, time.monotonic() + _TIME_LIMIT
    while time.monotonic() < limit:
        ended = process.ended()
        events, offset = read_events(run.ledger(number), offset)
        if kill is not None and any(map(kill.is_due, events)):
            time.sleep(kill.delay)
            return True
        for event in events:
            attempt.add(event)
        if events:
            run.watch(number, attempt)
        if ended:
            return False
        time.sleep(_POLL)
    return False
