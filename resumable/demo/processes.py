"""Processes that are started by a nursery, and killed together with everything that they started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Self

from resumable.chaos.processes import living_members, remove_shared_memory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Nursery", "ProcessError", "ProcessGroup"]

_PATIENCE = 10.0  # seconds
_POLL = 0.002  # seconds
_NO_NURSERY = "the process that forks the training processes ended; it said above why"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class ProcessError(RuntimeError):
    """A process could not be started, failed by itself, or left others behind."""


class Nursery:
    """Starts a process that forks others; it needs seconds until it is ready, and nobody waits for it here."""

    def __init__(self) -> None:
        self._lock = Lock()  # of the question and its answer
        self._process = subprocess.Popen(
            [sys.executable, "-m", "resumable.demo.nursery"],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **_ONE_THREAD},
        )

    def fork(self, command: Sequence[str], output: Path, status: Path) -> int:
        """Fork a process that trains.

        Args:
            command: module of the training program, and its arguments.
            output: file that gets what it prints.
            status: file that gets its exit status at its end.

        Returns:
            Its number.
        """
        request = {"command": command, "output": str(output.absolute()), "status": str(status.absolute())}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock, suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            if answer := self._process.stdout.readline():
                return int(answer)
        raise ProcessError(_NO_NURSERY)

    def check(self) -> None:
        """See that it is there.

        Raises:
            ProcessError: it ended.
        """
        if self._process.poll() is not None:
            raise ProcessError(_NO_NURSERY)

    def close(self) -> None:
        """Let it end, and kill what it forked."""
        with self._process:  # closes the pipes and waits
            pass


class ProcessGroup:
    """A forked process, leader of a group of its own. Leaving the `with` block kills what is left of the group.

    Args:
        nursery: forks the process.
        command: module of the training program, and its arguments.
        output: file that gets what it prints; the exit status is written beside it.
    """

    def __init__(self, nursery: Nursery, command: Sequence[str], output: Path) -> None:
        self._nursery, self._status_file = nursery, output.with_suffix(".status")
        self._leader = nursery.fork(command, output, self._status_file)
        self.status: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def ended(self) -> bool:
        """Tell whether the leader has ended; `status` is its exit status then."""
        if self.status is None and self._status_file.exists():
            self.status = int(self._status_file.read_text())
        return self.status is not None

    def kill(self) -> None:
        """Kill every process of the group with SIGKILL, and wait until none is left."""
        members = living_members(self._leader)
        if not self.ended() or members:  # otherwise the number may be another group's by now
            with suppress(ProcessLookupError, PermissionError):  # nobody is left; on macOS: only zombies are
                os.killpg(self._leader, signal.SIGKILL)
        while not self.ended():
            self._nursery.check()
            time.sleep(_POLL)
        self.wait_for_members()
        remove_shared_memory(members)

    def wait_for_members(self) -> None:
        """Wait until what the leader started is gone, too.

        Raises:
            ProcessError: it is not after ten seconds.
        """
        patience = time.monotonic() + _PATIENCE
        while members := living_members(self._leader):
            if time.monotonic() > patience:
                raise ProcessError(
                    f"the processes {members} live on after the end of {self._leader}, which started them"
                )
            time.sleep(_POLL)
