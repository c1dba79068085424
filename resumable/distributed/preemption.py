"""Preemption: on a signal to end, all ranks stop after the same step, with one checkpoint.

The handler only sets a flag. The first rank that sees its flag writes a step to the store of the process group, a few
steps ahead, because a different rank may be one step ahead. The others check the store once per step. The loop needs no
collective for this, and a rank that finds that it has passed the agreed step raises.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NoReturn, Self, SupportsIndex

from resumable._fetch.workers import heed, ignore
from resumable._ranks import rendezvous
from resumable.errors import ConfigurationError, PreemptionError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from resumable._ranks.rendezvous import Rendezvous

__all__ = ["EXIT_CODE", "Preemption", "preemption"]

EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: try again
_OTHERS = 60.0  # seconds that rank 0 waits for the others before it asks SLURM to requeue the job

_active: list[Preemption] = []  # from the outermost to the innermost


def preemption(
    signals: Iterable[int] = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT),
    *,
    margin: int = 2,
    requeue: bool | None = None,
) -> Preemption:
    """Listen, while a `with` block runs, for the signals that ask a job to end.

        with resumable.preemption() as stop:
            for epoch in loader.epochs(10):
                for batch in epoch:
                    train(batch)
                    if stop.reached(loader.global_step):  # the same answer on every rank, at the same step
                        store.save(loader.global_step, ...)
                        stop.exit()

    Args:
        signals: SIGTERM, which preemption, Kubernetes and torchrun send; SIGUSR1, for example from
            `sbatch --signal=USR1@120`; and SIGINT, which raises KeyboardInterrupt immediately the second time.
        margin: after how many further calls of `reached` the ranks stop, once one has seen the signal; ignored for one
            rank. It must be larger than the number of steps that ranks can be apart: 2 if each step has a collective
            that the CPU waits for. Use more if it does not wait, as with NCCL without `.item()`, or under `no_sync`.
        requeue: whether `exit()` runs `scontrol requeue`; None to do so if SLURM runs the job.

    Raises:
        ConfigurationError: on entering, if outside the main thread; or an option has a bad value.
    """
    return Preemption(tuple(signals), margin=margin, requeue=requeue)


class Preemption:
    """Returned by `resumable.preemption()`: says whether, and after which step, all ranks stop."""

    def __init__(self, signals: tuple[int, ...], *, margin: int, requeue: bool | None) -> None:
        if isinstance(margin, bool) or not isinstance(margin, int) or margin < 1:
            raise ConfigurationError(
                f"margin must be a whole number of steps, 1 or more.\n  got: {margin!r}\n"
                "It must be larger than the number of steps that ranks can be apart: 2 with a collective in each step."
            )
        self._signals, self._margin, self._requeue = signals, margin, requeue
        self._before: dict[int, Any] = {}
        self._process = 0
        self.received: int | None = None  # by this process; other ranks may have received a different signal, or none
        self._at: int | None = None  # the agreed step, or the first one after it
        self._last: int | None = None
        self._stride = 1
        self._ranks: Rendezvous | None = None
        self._key = ""

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            raise ConfigurationError(
                "resumable.preemption() was entered in a thread, but Python handles signals only in the main thread.\n"
                "Enter it in the main thread; `reached` may be called in any thread."
            )
        self._process = os.getpid()
        for number in self._signals:
            self._before[number] = signal.signal(number, self._receive)
        _active.append(self)
        heed(self._signals)
        return self

    def __exit__(self, *_: object) -> None:
        _active.remove(self)
        ignore(self._signals)
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set from Python
        self._before.clear()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Only set flags: this may interrupt any other line."""
        if os.getpid() != self._process:  # a fork, which ends in the same way as without the block
            signal.signal(number, self._before.get(number) or signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        again = number == signal.SIGINT and self.received == number
        for one in _active:
            one.received = number
        if again:
            signal.default_int_handler(number, frame)

    # ------------------------------------------------------------------ called by the loop

    def reached(self, step: SupportsIndex) -> bool:
        """Return whether to save and stop now; call it on every rank, once after each step.

        All ranks must call it with the same steps. The steps may have gaps, but must only grow.

        It is False if the store of the process group is gone because the rank that hosts it has ended. Then that rank
        has reached the end of the run, which this one is about to reach, or the next collective fails.

        Args:
            step: the number of completed steps, such as `loader.global_step`.

        Raises:
            PreemptionError: this rank has passed the step at which the others stop. Do not save anything then.
            ConfigurationError: the steps go backwards.
        """
        number, last = step.__index__(), self._last
        if last is not None and number < last:
            raise ConfigurationError(
                "the steps go backwards, so the ranks could not agree on one.\n"
                f"  previous call: {last}\n  this call:     {number}\n"
                "Pass a number that only grows, such as `loader.global_step`."
            )
        if last is not None and number > last:
            self._stride = number - last
        self._last = number
        ranks = self._find_ranks()
        if ranks is None or ranks.size == 1:
            return self.received is not None
        if self._at is None:
            self._agree(ranks, number, last)
        return self._at is not None and number >= self._at

    def _find_ranks(self) -> Rendezvous | None:
        if self._ranks is None and (found := rendezvous.find()) is not None:
            self._ranks, self._key = found, found.key("preemption")
        return self._ranks

    def _agree(self, ranks: Rendezvous, step: int, last: int | None) -> None:
        try:
            if self.received is not None:
                at = ranks.set_once(self._key, str(step + self._margin * self._stride))
            else:
                at = ranks.look(self._key) or ""
        except RuntimeError:  # every store error is one: the rank that hosts it has finished, or has died
            return
        if at:
            self._at = int(at)
            if step > self._at and (last is None or last >= self._at):
                raise PreemptionError(
                    f"rank {ranks.rank} has passed the step at which all ranks stop, so it must not save.\n"
                    f"  agreed step: {self._at}\n  this rank:   {step}\n"
                    f"The ranks were further apart than margin={self._margin} allows. Pass a larger margin to "
                    "preemption(), or make the ranks wait for each other in each step."
                )

    def exit(self) -> NoReturn:
        """End the process with status 75, which means that it should be restarted; under SLURM, requeue the job first.

        Rank 0 runs `scontrol requeue` after all ranks have called this, because it makes SLURM end them all. Call it
        when everything is saved.

        Raises:
            SystemExit: always, with status 75.
        """
        job = _slurm_job()
        if job is not None if self._requeue is None else self._requeue:
            self._requeue_job(job)
        sys.exit(EXIT_CODE)

    def _requeue_job(self, job: str | None) -> None:
        ranks = self._ranks
        if ranks is not None and ranks.size > 1:
            ranks.set(f"{self._key}/done/{ranks.rank}", "1")
            if ranks.rank == 0:
                _wait_for([f"{self._key}/done/{rank}" for rank in range(ranks.size)], ranks)
        if (int(os.environ.get("SLURM_PROCID", "0")) if ranks is None else ranks.rank) == 0:
            _run_scontrol(job)


def _slurm_job() -> str | None:
    """Return SLURM's id of this job, if it is one."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ.get("SLURM_JOB_ID")


def _run_scontrol(job: str | None) -> None:
    log = logging.getLogger("resumable")
    if job is None or (command := shutil.which("scontrol")) is None:
        log.warning("the job was not requeued: %s", "no SLURM_JOB_ID" if job is None else "scontrol was not found")
        return
    done = subprocess.run([command, "requeue", job], check=False, capture_output=True, text=True)  # noqa: S603  # found in PATH
    if done.returncode:
        log.warning("scontrol requeue %s failed with status %d: %s", job, done.returncode, done.stderr.strip())


def _wait_for(keys: list[str], ranks: Rendezvous) -> None:
    until = monotonic() + _OTHERS
    while missing := ranks.missing(keys):
        if monotonic() > until:
            logging.getLogger("resumable").warning("ranks %s did not finish within %g s", missing, _OTHERS)
            return
        sleep(0.05)
