"""Deaths of worker processes: what is known of one, when to start the workers again, and when to give up.

Workers read ahead: one that dies or stops at a batch may not have sent the one before it. So after a hang, and after a
second death before all batches are there that were asked for at the first, one batch is asked for at a time. Two deaths
then, and none comes between them: that batch is what ends workers. Likewise two hangs without a batch between them. So
there are at most some deaths from one batch to the next.
"""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING, NamedTuple

from resumable.errors import WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Died", "Healing", "Lost"]

_DEATHS = 2  # at a batch that alone was asked for
_HANGS = 2
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
        owed: how many batches had been asked for, of any worker.
        hangs: they gave no answer in time, and were ended for that.
    """

    def __init__(self, lost: list[Lost], owed: int, *, hangs: bool = False) -> None:
        super().__init__(lost, owed, hangs)
        self.lost, self.owed, self.hangs = lost, owed, hangs


class Healing:
    """Decides for one loader, over all of its epochs, whether workers are started again.

    Args:
        workers: how many there are.
        fixed: their number belongs to the stream, so that none can be taken away.

    Attributes:
        careful: ask for one batch at a time.
    """

    def __init__(self, workers: int, *, fixed: bool = False) -> None:
        self.workers, self._fixed = workers, fixed
        self.careful = False
        self._left = 0  # batches, of those that were owed at the last death
        self._alone = self._hangs = 0  # since the last batch
        self._kills = self._restarts = 0

    def delivered(self) -> None:
        """Note that a batch has come."""
        self._alone = self._hangs = 0
        if self._left:
            self._left -= 1
            self.careful = self.careful and self._left > 0

    def after(self, died: Died, batch_of: Callable[[Lost], str]) -> None:
        """Log a death, after which the workers are to be started again.

        Args:
            died: what happened.
            batch_of: describes the batch that a worker had to give; empty where there was none.

        Raises:
            WorkerError: it happened too often.
        """
        lost = [(worker, batch_of(worker)) for worker in died.lost]
        if died.hangs:
            self._hangs += 1
        elif self.careful:
            self._alone += 1
        if self._hangs == _HANGS or self._alone == _DEATHS:
            raise _over(died, *max(lost, key=lambda pair: bool(pair[1])))
        self.careful = died.hangs or self._left > 0
        self._left = max(self._left, died.owed)
        self._restarts += 1
        logging.getLogger("resumable").warning(
            "%s\nThe workers are started again%s, and read again what was not delivered: the stream stays the same "
            "(restart %d of this loader).",
            *("\n".join(_line(died, *pair) for pair in lost), self._take_one_away(died), self._restarts),
        )

    def _take_one_away(self, died: Died) -> str:
        if died.hangs or not any(worker.exitcode == -signal.SIGKILL for worker in died.lost):
            return ""
        self._kills += 1
        if self._fixed or self.workers == 1 or self._kills % _KILLS_PER_WORKER:
            return ""
        self.workers -= 1
        return f", {self.workers} from now on, as memory may be short"


def _line(died: Died, worker: Lost, batch: str) -> str:
    asked = f"\n  it was asked for: {batch}" if batch else ""
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


def _over(died: Died, worker: Lost, batch: str) -> WorkerError:
    if died.hangs:
        what = "gave no answer, and none when they were asked again"
        advice = "give the DataLoader a longer timeout=, or find what the dataset waits for, and go on from the state."
    else:
        what = "died again and again, also when one batch was asked for at a time"
        advice = "look for a crash in the dataset, free memory if the system killed it, and go on from the state."
    return WorkerError(
        f"the processes that read samples {what}.\n  {_line(died, worker, batch)}\n"
        f"The loader's state is that before this batch: {advice}"
    )
