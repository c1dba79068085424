"""Workers that are restarted if one dies or hangs. Anything that was not delivered is read again.

Workers prefetch: a worker that dies or hangs at a batch may not have sent the batch before it. So after a hang, workers
are asked for one batch at a time. The same happens after a second death before all batches have arrived that were owed
at the first. If that ends in two deaths without a batch between them, the batch itself kills workers. Two hangs without
a batch between them count the same. This limits the number of restarts between two batches.

PyTorch reports a dead worker with a signal handler that raises between any two lines of the main thread: inside a
sampler, which cannot continue then, or in the training step. So these workers are not registered with the handler.
Instead, each wait for a batch also checks the processes. A pool in which a worker died is never used again.

A queue of `multiprocessing` waits forever for the rest of a message that it has started to read. It also waits forever
while it builds a tensor from a message, because it asks the sending process for it. PyTorch leaves the first wait with
the exception of its signal handler, but cannot leave the second. So the pool reads its pipe itself (`Inbox`).
"""

from __future__ import annotations

import logging
import os
import signal
import struct
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from pickle import loads  # what a queue of `multiprocessing` uses
from queue import Empty
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import DataLoader

from resumable._fetch.stalls import dump_stack, shortened
from resumable._fetch.workers import Workers
from resumable._processes import look_at
from resumable._torch_private import WorkersIterator, forget_workers, is_exiting
from resumable.errors import WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from resumable._stats import Meter
    from resumable.protocols import Request

__all__ = ["DeadWorker", "RestartPolicy", "RestartingWorkers", "WorkersDied"]


_DEATHS = 2  # at a batch that was requested alone
_HANGS = 2
_KILLS_PER_WORKER = 2


class DeadWorker(NamedTuple):
    """A worker that died, or does not answer.

    Args:
        number: of the worker.
        pid: of its process.
        exitcode: of its process, as in `multiprocessing`; None if it is unknown.
        asked: which batches it owed, counted from the one that was awaited.
        stack: where to find the stack of a worker that hangs.
    """

    number: int
    pid: int | None
    exitcode: int | None
    asked: list[int]
    stack: str = ""


class WorkersDied(Exception):  # noqa: N818  # never seen by users, whose errors are in `resumable.errors`
    """Workers died or hang; all processes of their pool have been ended.

    Args:
        lost: the workers.
        owed: how many batches had been requested, from all workers.
        hangs: they did not answer in time, and were killed.
    """

    def __init__(self, lost: list[DeadWorker], owed: int, *, hangs: bool = False) -> None:
        super().__init__(lost, owed, hangs)
        self.lost, self.owed, self.hangs = lost, owed, hangs


class RestartPolicy:
    """Decides for one loader, over all its epochs, whether workers are restarted.

    Args:
        workers: how many there are.
        fixed: the stream depends on their number, so it cannot be reduced.

    Attributes:
        careful: request one batch at a time.
    """

    def __init__(self, workers: int, *, fixed: bool = False) -> None:
        self.workers, self._fixed = workers, fixed
        self.careful = False
        self._left = 0  # batches that were owed at the last death, and have not arrived
        self._alone = self._hangs = 0  # since the last batch
        self._kills = self._restarts = 0

    def delivered(self) -> None:
        """Note that a batch has arrived."""
        self._alone = self._hangs = 0
        if self._left:
            self._left -= 1
            self.careful = self.careful and self._left > 0

    def after(self, died: WorkersDied, batch_of: Callable[[DeadWorker], str]) -> None:
        """Log a death, after which the workers are to be restarted.

        Args:
            died: what happened.
            batch_of: describes the batch that a worker owed; empty if there was none.

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
            "%s\nThe workers are restarted%s, and read the undelivered batches again: the stream stays the same "
            "(restart %d of this loader).",
            *("\n".join(_line(died, *pair) for pair in lost), self._take_one_away(died), self._restarts),
        )

    def _take_one_away(self, died: WorkersDied) -> str:
        if died.hangs or not any(worker.exitcode == -signal.SIGKILL for worker in died.lost):
            return ""
        self._kills += 1
        if self._fixed or self.workers == 1 or self._kills % _KILLS_PER_WORKER:
            return ""
        self.workers -= 1
        return f" ({self.workers} from now on, in case memory is short)"


def _line(died: WorkersDied, worker: DeadWorker, batch: str) -> str:
    asked = f"\n  requested: {batch}" if batch else ""
    stack = f"\n  its stack: {worker.stack}" if worker.stack else ""
    return f"worker {worker.number}, process {worker.pid}, {_how(died, worker)}{asked}{stack}"


def _how(died: WorkersDied, worker: DeadWorker) -> str:
    if died.hangs:
        return "did not answer within the timeout of the DataLoader, and was killed"
    code = worker.exitcode
    if code is None:
        return "died"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}" + (", which the system may send if memory runs out" if name == "SIGKILL" else "")


def _over(died: WorkersDied, worker: DeadWorker, batch: str) -> WorkerError:
    if died.hangs:
        what = "did not answer, not even when the batch was requested again"
        advice = "Set a longer timeout= in the DataLoader, or find out what the dataset waits for."
    else:
        what = "died repeatedly, even when one batch was requested at a time"
        advice = "Check the dataset for a crash, and free memory if the system killed the worker."
    return WorkerError(
        f"the worker processes {what}.\n  {_line(died, worker, batch)}\n"
        f"The loader's state does not count this batch, so you can resume from it. {advice}"
    )


class RestartingWorkers(Workers):
    """Workers that are restarted if one dies.

    A request lists its samples and keys, so reading it again yields the same batch. For a stream, only its driver knows
    how to restart it, and gets `WorkersDied`.

    Args:
        dataset: what the processes run: a `RequestDataset`, or an iterable-style one.
        options: returns the options for a `DataLoader` that set the number and the kind of processes.
        policy: decides whether they are restarted.
        meter: gets the measurements of the processes.
    """

    def __init__(
        self, dataset: Any, options: Callable[[], Mapping[str, Any]], policy: RestartPolicy, meter: Meter | None = None
    ) -> None:
        super().__init__(dataset, options, meter)
        self._policy = policy
        self._pool: Any = None

    def run(self, requests: Iterable[Request] | None, *, seed: int | None = None) -> Generator[Any]:
        """Yield what the processes return, in order.

        Args:
            requests: what to read, or None if the dataset is a stream.
            seed: for the workers' own seeds; None continues after the last run.

        Raises:
            WorkerError: processes died too often, or could not be started.
            WorkersDied: a process that reads a stream died.
        """
        return self._pooled(None, seed) if requests is None else self._restarted(iter(requests), seed)

    def _restarted(self, source: Iterator[Request], seed: int | None) -> Generator[Any]:
        asked: deque[Request] = deque()  # not delivered yet
        while True:
            answers = self._pooled(_asking(asked, source), seed)
            try:
                for answer in answers:
                    asked.popleft()
                    self._policy.delivered()
                    yield answer
            except WorkersDied as died:
                self._policy.after(died, lambda lost: self._work_of(lost, asked))
            else:
                return
            finally:
                answers.close()

    def _work_of(self, lost: DeadWorker, asked: deque[Request]) -> str:
        return _batch(asked[lost.asked[0]]) if lost.asked else ""

    def _pooled(self, requests: Iterator[Request] | None, seed: int | None) -> Generator[Any]:
        """Run one pool, as carefully as needed."""
        answers = self._run(requests, seed, {**self._options(), "num_workers": self._policy.workers})
        try:
            for answer in answers:
                if self._pool is not None and self._pool.careful and not self._policy.careful:
                    self._pool.hurry()
                yield answer
        finally:
            answers.close()
            self._pool = None

    def _start(self, loader: Any, requests: Iterable[Request] | None, seed: int | None) -> Iterator[Any]:
        loader.careful = self._policy.careful
        self._pool = answers = super()._start(loader, requests, seed)
        return answers

    def _loader_type(self, given: Mapping[str, Any]) -> type[DataLoader[Any]]:  # noqa: ARG002  # for any start method
        return PoolLoader


def _asking(asked: deque[Request], source: Iterator[Request]) -> Iterator[Request]:
    """Yield the undelivered requests again, and then the new ones."""
    yield from list(asked)
    for request in source:
        asked.append(request)
        yield request


def _batch(request: Request) -> str:
    found = request.indices
    samples = shortened(found if isinstance(found, list) else found.tolist())
    return f"epoch {request.epoch}, step {request.step}, samples {samples}"


_PIECE = 1 << 20
_READ_SLICE = 0.2  # seconds after which a wait checks whether it is over
_DYING = 1.0  # seconds between the end of a process's connections and the end of the process


class Inbox:
    """The receiving end of a queue that processes share. It replaces the queue's `get`.

    Args:
        queue: of `multiprocessing`.

    Attributes:
        processes: the sentinels of all senders.
        sentinels: of the processes whose end also ends a wait.
        torn: a message was lost, because its sender died with the memory that it refers to.
        since: when unpickling of the current message started; None if none is being unpickled.
        over: end every wait.
    """

    def __init__(self, queue: Any) -> None:
        self._reader, self._sem = queue._reader, queue._sem  # noqa: SLF001  # the ends of the pipe are nowhere else
        self._bytes = bytearray()
        self.processes: list[int] = []
        self.sentinels: list[int] = []
        self.torn = False
        self.since: float | None = None
        self.over = False
        queue.get = self.get

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # a queue's signature
        """Return a message.

        Raises:
            Empty: no message arrived in time, or a process died.
        """
        until = monotonic() + (timeout or 0) if timeout is not None or not block else None
        while (message := self._cut()) is None:
            left = _READ_SLICE if until is None else min(max(until - monotonic(), 0), _READ_SLICE)
            ready = wait([self._reader, *self.sentinels], left)
            if self._reader in ready:
                self._read()
            elif ready or self.over or (until is not None and monotonic() >= until):
                raise Empty
        return self._loads(message)

    def _read(self) -> None:
        piece = os.read(self._reader.fileno(), _PIECE)
        if not piece:
            raise Empty
        self._bytes += piece

    def _cut(self) -> bytes | None:
        """Take the first message off once it is complete, with the length prefix that `multiprocessing` writes."""
        whole, begin = self._bytes, 4
        if len(whole) < begin:
            return None
        (size,) = struct.unpack_from("!i", whole)
        if size == -1:
            begin = 12
            if len(whole) < begin:
                return None
            (size,) = struct.unpack_from("!Q", whole, 4)
        if len(whole) < begin + size:
            return None
        message = bytes(memoryview(whole)[begin : begin + size])
        del whole[: begin + size]
        return message

    def _loads(self, message: bytes) -> Any:
        self._sem.release()
        self.since = monotonic()
        try:
            return loads(message)  # noqa: S301  # from our processes
        except Exception as error:
            if wait(self.processes, _DYING):
                self.torn = True
                raise Empty from error
            raise
        finally:
            self.since = None


class Watch(threading.Thread):
    """Kills processes if unpickling one of their messages takes longer than a limit.

    Args:
        inbox: unpickles the messages.
        limit: seconds.
        kill: kills the processes; must not hold a reference to this thread.
    """

    def __init__(self, inbox: Inbox, limit: float, kill: Callable[[], None]) -> None:
        super().__init__(name="resumable hanging workers", daemon=True)
        self._inbox, self._limit, self._kill = inbox, limit, kill
        self.over, self.found = threading.Event(), False

    def run(self) -> None:
        """Check at intervals."""
        while not self.over.wait(self._limit / 4):
            since = self._inbox.since
            if since is not None and monotonic() - since > self._limit:
                self.found = True
                self._kill()
                return


_SLICE = 1.0  # seconds between two direct checks of the processes, because a child may keep a sentinel open
_PINNED_SLICE = 0.1  # the same, if a different thread reads
_END = 5.0  # seconds that processes and threads get to end


class PoolLoader(DataLoader[Any]):
    """A `DataLoader` whose iterator is a `Pool`.

    Attributes:
        careful: request one batch at a time, in the next run.
    """

    careful = False

    def _get_iterator(self) -> Any:
        if not self.num_workers:
            return super()._get_iterator()
        begun: list[Pool] = []
        try:
            return Pool(self, begun)
        except (RuntimeError, ConnectionError, EOFError) as error:
            # A worker died while starting: the pipe to it is broken, or PyTorch's handler was faster.
            if not begun or not (dead := begun[0].dead()):
                raise
            raise begun[0].died(dead) from error


class Pool(WorkersIterator):
    """PyTorch's iterator, with a different way to detect deaths: it raises `WorkersDied`.

    Args:
        loader: with at least one worker.
        begun: gets the pool before its workers start.

    Attributes:
        careful: request one batch at a time.
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

    def _reset(self, loader: Any, first_iter: bool = False) -> None:  # PyTorch's signature
        if first_iter:
            forget_workers(self)  # so PyTorch's handler ignores these workers
            self._worker_pids_set = False
            if self._timeout > 0:
                self._watch = Watch(self._inbox, self._timeout, partial(_kill, self._workers))
                self._watch.start()
        self.careful = loader.careful
        self._inbox.processes = [worker.sentinel for worker in self._workers]
        super()._reset(loader, first_iter)

    def _mark_worker_as_unavailable(self, worker_id: int, shutdown: bool = False) -> None:  # noqa: ARG002  # PyTorch's
        # Like PyTorch, but without reading an event. A worker may have held its lock when it was killed.
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
        if not self._pin_memory:  # otherwise the pinning thread reads, and would be interrupted
            self._inbox.sentinels = self._sentinels()
        while True:
            with suppress(Empty):
                answer = self._data_queue.get(timeout=max(min(until - monotonic(), most), 0))
                if not self._inbox.torn:  # otherwise this may be a later answer
                    return True, answer
            if self._inbox.torn:
                wait(self._sentinels(), _END)  # a process's connections end before the process does
            if dead := self.dead() or (self._inbox.torn and self._awaited()):
                found = self._watch is not None and self._watch.found  # then all were killed because one hangs
                raise self.died(self._awaited() if found else dead, hangs=found)
            if monotonic() >= until:
                return False, None

    def _active(self) -> list[tuple[int, Any]]:
        """Return the workers whose stream has not ended."""
        status = getattr(self, "_workers_status", None)
        return [(number, worker) for number, worker in enumerate(self._workers) if status is None or status[number]]

    def _sentinels(self) -> list[int]:
        return [worker.sentinel for _, worker in self._active()]

    def _awaited(self) -> list[int]:
        """Return the worker that owes the next batch; all of them while they start a new epoch."""
        return [self._task_info[self._rcvd_idx][0]] if self._task_info else [number for number, _ in self._active()]

    def dead(self) -> list[int]:
        """Return which workers have died."""
        ended = wait(self._sentinels(), 0)
        return [number for number, worker in self._active() if worker.sentinel in ended or not worker.is_alive()]

    def died(self, numbers: list[int], *, hangs: bool = False) -> WorkersDied:
        """End all processes, and return what to raise."""
        tasks = sorted(getattr(self, "_task_info", {}).items())
        lost = []
        for number in numbers:
            worker = self._workers[number]
            stack = dump_stack(worker.pid) if hangs else ""
            if not hangs:
                worker.join(_END)  # the exit code of a zombie is unknown until then
            asked = [task - self._rcvd_idx for task, (owner, *data) in tasks if owner == number and not data]
            lost.append(DeadWorker(number, worker.pid, worker.exitcode, asked, stack))
        self._end_now()
        return WorkersDied(lost, len(tasks), hangs=hangs)

    def hurry(self) -> None:
        """Let the workers prefetch from now on."""
        self.careful, sent = False, -1
        while len(self._task_info) < self._prefetch_factor * self._num_workers and sent != self._send_idx:
            sent = self._send_idx
            self._try_put_index()

    def _try_put_index(self) -> None:
        asked = self._task_info.values() if self.careful else ()
        if not any(len(task) > 1 or self._workers_status[task[0]] for task in asked):
            super()._try_put_index()

    def _shutdown_workers(self) -> None:
        if self._shutdown or is_exiting():
            return
        if not hasattr(self, "_inbox"):
            return  # nothing was started
        self._inbox.over = True
        try:
            if self._can_end_by_themselves():
                super()._shutdown_workers()
        finally:
            self._end_now()

    def _can_end_by_themselves(self) -> bool:
        """Return whether no worker died or was stopped. Such a worker could hold a lock that PyTorch waits for."""
        if not hasattr(self, "_workers_status") or self.dead() or any(map(_is_stopped, self._workers)):
            return False
        condition: Any = self._workers_done_event._cond  # type: ignore[attr-defined]  # noqa: SLF001  # all its methods wait on it
        if not condition.acquire(timeout=_END):
            return False
        condition.release()
        return True

    def _end_now(self) -> None:
        """End the remaining processes, threads and pipes."""
        self._shutdown = self._inbox.over = True
        with suppress(ValueError):  # raised if they are not registered, as they are only while workers start
            forget_workers(self)
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
            if queue._thread is not None:  # noqa: SLF001  # must not be running when the next workers are forked
                queue._thread.join(_END)  # noqa: SLF001  # the same


def _kill(workers: list[Any]) -> None:
    for worker in workers:
        with suppress(OSError, ValueError):
            worker.kill()


def _is_stopped(worker: Any) -> bool:
    stat = look_at(worker.pid)
    return stat is not None and stat.is_stopped
