"""Pool: a `DataLoader` whose worker processes may die or stop at any moment.

torch tells of a dead worker by the handler of a signal, which raises between any two lines of the main thread: inside
of a sampler, which is over by that, or in the training step. So these workers are not known to the handler. Instead,
each wait for a batch looks at the processes, too. What is left of a pool in which one died is never used again.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from queue import Empty
from time import monotonic
from typing import Any

from torch._C import _remove_worker_pids
from torch.utils.data import DataLoader, _utils
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from resumable._fetch.deaths import Died, Lost
from resumable._fetch.inbox import Inbox, Watch
from resumable._fetch.stalls import dump_stack

__all__ = ["PoolLoader"]

_SLICE = 1.0  # seconds after which the processes are asked by name, for those whose sentinel a child of theirs holds
_PINNED_SLICE = 0.1  # likewise, where another thread reads
_END = 5.0  # seconds that what is ended may take


class PoolLoader(DataLoader[Any]):
    """A `DataLoader` whose iterator is a `Pool`.

    Attributes:
        careful: ask for one batch at a time, in the run that is begun next.
    """

    careful = False

    def _get_iterator(self) -> Any:
        if not self.num_workers:
            return super()._get_iterator()
        begun: list[Pool] = []
        try:
            return Pool(self, begun)
        except (RuntimeError, ConnectionError, EOFError) as error:
            # A worker died in its start: the pipe to it is broken, or torch's handler was quicker than we.
            if not begun or not (dead := begun[0].dead()):
                raise
            raise begun[0].died(dead) from error


class Pool(_MultiProcessingDataLoaderIter):
    """torch's iterator, which finds deaths in another way, and tells of them by `Died`.

    Args:
        loader: with at least one worker.
        begun: gets the pool before its workers start.

    Attributes:
        careful: ask for one batch at a time.
    """

    careful: bool
    _inbox: Inbox
    _watch: Watch | None = None

    def __init__(self, loader: Any, begun: list[Pool]) -> None:
        begun.append(self)
        self._workers: list[Any] = []
        self._shutdown = False
        super().__init__(loader)

    @property
    def _worker_result_queue(self) -> Any:
        return self._results

    @_worker_result_queue.setter
    def _worker_result_queue(self, queue: Any) -> None:
        self._results, self._inbox = queue, Inbox(queue)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:  # torch's signature
        if first_iter:
            _remove_worker_pids(id(self))  # torch's handler asks for no others
            self._worker_pids_set = False
            if self._timeout > 0:
                self._watch = Watch(self._inbox, self._timeout, partial(_kill, self._workers))
                self._watch.start()
        self.careful = loader.careful
        self._inbox.processes = [worker.sentinel for worker in self._workers]
        super()._reset(loader, first_iter)

    def _mark_worker_as_unavailable(self, worker_id: int, shutdown: bool = False) -> None:  # noqa: ARG002  # torch's
        # As torch does it, but for looking at an event, whose lock a worker may have had when it was killed.
        self._index_queues[worker_id].put(None)
        self._workers_status[worker_id] = False

    def _get_data(self) -> Any:
        while True:
            found, data = self._try_get_data(self._timeout or _END)
            if found:
                return data
            if self._timeout > 0:
                raise self.died(self._awaited(), hangs=True)
            if self._pin_memory and not self._pin_memory_thread.is_alive():
                raise RuntimeError("Pin memory thread exited unexpectedly")

    def _try_get_data(self, timeout: float = _END) -> tuple[bool, Any]:
        until, most = monotonic() + timeout, _PINNED_SLICE if self._pin_memory else _SLICE
        if not self._pin_memory:  # else the thread that pins reads, and would be told
            self._inbox.sentinels = self._sentinels()
        while True:
            with suppress(Empty):
                answer = self._data_queue.get(timeout=max(min(until - monotonic(), most), 0))
                if not self._inbox.torn:  # else this may be one after that
                    return True, answer
            if self._inbox.torn:
                wait(self._sentinels(), _END)  # the connections of a process end before itself
            if dead := self.dead() or (self._inbox.torn and self._awaited()):
                found = self._watch is not None and self._watch.found  # then all were ended, for the one that hangs
                raise self.died(self._awaited() if found else dead, hangs=found)
            if monotonic() >= until:
                return False, None

    def _active(self) -> list[tuple[int, Any]]:
        """Return the workers that have not come to the end of their stream."""
        status = getattr(self, "_workers_status", None)
        return [(number, worker) for number, worker in enumerate(self._workers) if status is None or status[number]]

    def _sentinels(self) -> list[int]:
        return [worker.sentinel for _, worker in self._active()]

    def _awaited(self) -> list[int]:
        """Return which worker has the next batch to give; all of them, where they are told of a new epoch."""
        return [self._task_info[self._rcvd_idx][0]] if self._task_info else [number for number, _ in self._active()]

    def dead(self) -> list[int]:
        """Return which workers have died."""
        ended = wait(self._sentinels(), 0)
        return [number for number, worker in self._active() if worker.sentinel in ended or not worker.is_alive()]

    def died(self, numbers: list[int], *, hangs: bool = False) -> Died:
        """End all processes, and return what to raise."""
        tasks = sorted(getattr(self, "_task_info", {}).items())
        lost = []
        for number in numbers:
            worker = self._workers[number]
            stack = dump_stack(worker.pid) if hangs else ""
            if not hangs:
                worker.join(_END)  # of what is a zombie yet, the exit code is not known
            asked = [task - self._rcvd_idx for task, (owner, *data) in tasks if owner == number and not data]
            lost.append(Lost(number, worker.pid, worker.exitcode, asked, stack))
        self._end_now()
        return Died(lost, len(tasks), hangs=hangs)

    def hurry(self) -> None:
        """Let the workers read ahead from now on."""
        self.careful, sent = False, -1
        while len(self._task_info) < self._prefetch_factor * self._num_workers and sent != self._send_idx:
            sent = self._send_idx
            self._try_put_index()

    def _try_put_index(self) -> None:
        asked = self._task_info.values() if self.careful else ()
        if not any(len(task) > 1 or self._workers_status[task[0]] for task in asked):
            super()._try_put_index()

    def _shutdown_workers(self) -> None:
        if self._shutdown or getattr(_utils, "python_exit_status", None) in {True, None}:
            return
        if not hasattr(self, "_inbox"):
            return  # nothing was begun
        self._inbox.over = True
        try:
            if self._can_end_by_themselves():
                super()._shutdown_workers()
        finally:
            self._end_now()

    def _can_end_by_themselves(self) -> bool:
        """Return whether none died or was stopped, which could hold a lock that torch waits for without a limit."""
        if not hasattr(self, "_workers_status") or self.dead() or any(map(_is_stopped, self._workers)):
            return False
        condition: Any = self._workers_done_event._cond  # type: ignore[attr-defined]  # noqa: SLF001  # all its methods wait for it
        if not condition.acquire(timeout=_END):
            return False
        condition.release()
        return True

    def _end_now(self) -> None:
        """End what is left of processes, threads and pipes."""
        self._shutdown = self._inbox.over = True
        with suppress(ValueError):  # it is not known, unless a start was interrupted just then
            _remove_worker_pids(id(self))
        if self._watch is not None:
            self._watch.over.set()
        _kill(self._workers)
        for worker in self._workers:
            worker.join(_END)
        if hasattr(self, "_pin_memory_thread"):
            self._pin_memory_thread_done_event.set()
            self._pin_memory_thread.join(_END)
        for queue in (*getattr(self, "_index_queues", ()), self._results):
            queue.cancel_join_thread()
            queue.close()
            if queue._thread is not None:  # noqa: SLF001  # none of them may be at work where the next workers are forked
                queue._thread.join(_END)  # noqa: SLF001  # likewise


def _kill(workers: list[Any]) -> None:
    for worker in workers:
        with suppress(OSError, ValueError):
            worker.kill()


def _is_stopped(worker: Any) -> bool:
    with suppress(OSError):
        stat = Path(f"/proc/{worker.pid}/stat").read_text(encoding="ascii", errors="replace")
        return stat.rpartition(")")[2].split()[0] in {"T", "t"}
    return False
