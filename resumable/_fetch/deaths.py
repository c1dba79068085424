"""Deaths of worker processes: what is known of one, when to start the workers again, and when to give up.

A batch is asked for three times at most where the process that reads it dies, and twice where it hangs. Ten deaths in a
row, without a batch delivered between them, end it too, whichever batches they were at. Every second death by SIGKILL,
by which a system that runs out of memory ends processes, takes one worker away.
"""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING, NamedTuple

from resumable.errors import WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["Died", "Healing", "Lost", "Wanted"]

TRIES_OF_DEATHS = 3
TRIES_OF_HANGS = 2
IN_A_ROW = 10
_KILLS_PER_WORKER = 2


class Lost(NamedTuple):
    """A worker that died, or gives no answer.

    Args:
        number: of the worker.
        pid: of its process.
        exitcode: of its process, as `multiprocessing` has it; None where it is unknown.
        asked: which batches it owed, counted from the one that was waited for.
        stack: where the stack of one that hangs is to be seen.
    """

    number: int
    pid: int | None
    exitcode: int | None
    asked: list[int]
    stack: str = ""


class Died(Exception):  # noqa: N818  # never seen by users, whose errors are in `resumable.errors`
    """Workers died, or hang; all processes of their pool are ended.

    Args:
        lost: which ones.
        hangs: they gave no answer in time, and were ended for that.
    """

    def __init__(self, lost: list[Lost], *, hangs: bool = False) -> None:
        super().__init__(lost, hangs)
        self.lost, self.hangs = lost, hangs


class Wanted(NamedTuple):
    """A batch that was asked for: what it is known by, and what it is called."""

    key: Hashable
    text: str


class Healing:
    """Decides for one loader, over all of its epochs, whether workers are started again.

    Args:
        workers: how many there are.
        fixed: their number belongs to the stream, so that none can be taken away.
    """

    def __init__(self, workers: int, *, fixed: bool = False) -> None:
        self.workers, self._fixed = workers, fixed
        self._tries: dict[Hashable, int] = {}
        self._row = self._kills = self._restarts = 0

    def delivered(self, key: Hashable) -> None:
        """Note that a batch has come."""
        self._row = 0
        if self._tries:
            self._tries.pop(key, None)

    def after(self, died: Died, wanted: Callable[[Lost], Wanted | None]) -> tuple[int, WorkerError] | None:
        """Log a death and return None where the workers are to be started again; else the error, and at which batch.

        Args:
            died: what happened.
            wanted: describes the batch that a worker had to give, if there was one.

        Returns:
            The number of the batch that cannot be read, which is 0 where no other one can be, either; and what to raise
            in its place.
        """
        self._row += 1
        batches = [(worker, wanted(worker)) for worker in died.lost]
        most = TRIES_OF_HANGS if died.hangs else TRIES_OF_DEATHS
        for worker, batch in batches:
            if batch is not None:
                self._tries[batch.key] = tries = self._tries.get(batch.key, 0) + 1
                if tries >= most:
                    return (*worker.asked, 0)[0], _over(died, worker, batch, f"{tries} times at the same batch")
        if self._row >= IN_A_ROW:
            return 0, _over(died, *batches[0], f"{self._row} times in a row, with no batch between")
        self._restarts += 1
        fewer = self._take_one_away(died)
        told = "\n".join(_line(died, *pair) for pair in batches)
        logging.getLogger("resumable").warning(
            "%s\nThe workers are started again%s, and read again what was not delivered: the stream stays the same "
            "(restart %d of this loader).",
            *(told, fewer, self._restarts),
        )
        return None

    def _take_one_away(self, died: Died) -> str:
        if died.hangs or not any(worker.exitcode == -signal.SIGKILL for worker in died.lost):
            return ""
        self._kills += 1
        if self._fixed or self.workers == 1 or self._kills % _KILLS_PER_WORKER:
            return ""
        self.workers -= 1
        return f", {self.workers} from now on, as memory may be short"


def _line(died: Died, worker: Lost, batch: Wanted | None) -> str:
    asked = f"\n  it was asked for: {batch.text}" if batch is not None else ""
    stack = f"\n  its stack:        {worker.stack}" if worker.stack else ""
    return f"worker {worker.number}, process {worker.pid}, {_how(died, worker)}{asked}{stack}"


def _how(died: Died, worker: Lost) -> str:
    if died.hangs:
        return "gave no answer within the timeout of the DataLoader, and was killed"
    code = worker.exitcode
    if code is None:
        return "died"
    if code >= 0:
        return f"ended with the exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}" + (", as by a system that runs out of memory" if name == "SIGKILL" else "")


def _over(died: Died, worker: Lost, batch: Wanted | None, count: str) -> WorkerError:
    what = "gave no answer" if died.hangs else "died"
    if died.hangs:
        advice = "give the DataLoader a longer timeout=, or find what the dataset waits for, and go on from the state."
    else:
        advice = "look for a crash in the dataset, free memory if the system killed it, and go on from the state."
    return WorkerError(
        f'a process that reads samples {what} {count}, in spite of on_worker_death="restart".\n'
        f"  {_line(died, worker, batch)}\nThe loader's state is that before this batch: {advice}"
    )
