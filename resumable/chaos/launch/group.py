"""Runs the user's command, and sees to its end and to that of all processes that it starts.

It may start several ranks: there may be an agent above them, as torchrun is one, and ranks may wait for a dead one.
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING, Protocol, Self

from resumable.chaos.processes import PATIENCE, POLL, kill_all, living_members, state_of
from resumable.chaos.recorder.events import read_events
from resumable.errors import ConfigurationError
from resumable.failpoints import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from threading import Event

    from resumable.chaos.launch.preload import Forked, Server
    from resumable.chaos.plan import Fault


__all__ = [
    "SHARED_STORE",
    "SURVIVE",
    "Group",
    "StoppedError",
    "environment_of_agents",
    "wait_for_the_dead",
]


SHARED_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
SURVIVE = {"agent", "all"}  # targets whose ranks may live on: they are killed at once, as by a job's scheduler
_SILENCE = 10.0  # seconds without any sign of life of ranks that have lost one
_LOOK = 0.25  # seconds between two looks at all processes of the system


class StoppedError(Exception):
    """The chaos run was interrupted, and waits for no command any longer."""


class Guard(Protocol):
    """Kills processes if this one ends, however that comes: the reaper."""

    stopping: Event

    def guard(self, mark: str, group: int = 0) -> None:
        """Kill the processes with a mark in their environment, and of a group if it is known, if this process ends."""
        ...

    def release(self, mark: str) -> None:
        """Forget them: nothing is left of them."""
        ...


class Group:
    """A command that runs, with all processes that it starts. Leaving the `with` block kills what is left of them.

    Args:
        command: the command and its arguments.
        directory: in which it runs.
        environment: added to this process's; it has the variable.
        output: file that gets what it prints.
        reaper: kills the processes where this one cannot do it any longer.
        preload: forks the command; None to start it as it stands.
        variable: in the environment, with a value of this start alone, by which its processes are known.
    """

    def __init__(  # noqa: PLR0913  # what a process needs
        self,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        output: Path,
        reaper: Guard | None = None,
        *,
        preload: Server | None = None,
        variable: str = VARIABLE,
    ) -> None:
        self._mark, self._reaper = f"{variable}={environment[variable]}", reaper
        if reaper:
            reaper.guard(self._mark)
        start = preload.start if preload else _start
        self._process: subprocess.Popen[bytes] | Forked = start(command, directory, environment, output)
        if reaper:
            reaper.guard(self._mark, self._process.pid)
        self._looked = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        if self._reaper:
            self._reaper.release(self._mark)

    def wait(self, is_overdue: Callable[[], str]) -> tuple[int, str]:
        """Wait for the command's end, or kill it.

        Args:
            is_overdue: says why it is to be killed, or nothing; asked many times per second.

        Returns:
            The exit status, negative for a signal; and why it was killed, or nothing.

        Raises:
            StoppedError: the chaos run was interrupted.
        """
        reason = ""
        while self._process.poll() is None:
            if self._reaper and self._reaper.stopping.is_set():
                raise StoppedError
            reason = is_overdue() or ("it was stopped" if self._is_stopped() else "")
            if reason:
                self.kill()
                break
            time.sleep(POLL)
        return self._process.wait(), reason

    def orphans(self) -> list[int]:
        """Return the processes that live on after the command's end, however long one waits."""
        patience = time.monotonic() + PATIENCE
        while (members := self._members()) and time.monotonic() < patience:
            time.sleep(POLL)
        return members

    def kill(self) -> None:
        """Kill every process that the command started, and wait until none is left."""
        kill_all(self._mark, self._process.pid)
        self._process.wait()

    def _members(self) -> list[int]:
        return living_members(self._process.pid, self._mark)

    def _is_stopped(self) -> bool:
        """Return whether one of the processes was stopped: the others would wait for it."""
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return False
        self._looked = now
        return any(state_of(member) in {"T", "t"} for member in self._members())


def _start(
    command: Sequence[str], directory: Path, environment: Mapping[str, str], output: Path
) -> subprocess.Popen[bytes]:
    try:
        with output.open("wb") as file:
            return subprocess.Popen(  # noqa: S603  # the user's own command
                command,
                cwd=directory,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise ConfigurationError(
            f"{command[0]} cannot be started: {error.strerror}.\nThe command is started as it stands, without a shell. "
            "Name the program that runs it, as in: bash train.sh"
        ) from error


def environment_of_agents() -> dict[str, str]:
    """Return what torchrun needs to start ranks again.

    Without it they read the addresses of the dead ones from the store that torchrun shares with them, and cannot
    connect: https://github.com/pytorch/pytorch/issues/135712. A value that is set already counts.
    """
    return {SHARED_STORE: os.environ.get(SHARED_STORE, "1")}


def wait_for_the_dead(fault: Fault | None, silent: float, ledgers: Path) -> str:
    """Say why a command has to be killed whose ranks wait for one that was killed, as a collective does for minutes.

    An agent ends such ranks, and may start them again, which takes its time. Without one nothing else does.

    Args:
        fault: of this start.
        silent: seconds without any sign of life.
        ledgers: their directory.
    """
    if fault is None or fault.kind != "kill" or silent <= _SILENCE:
        return ""
    if not any(b'"fire"' in path.read_bytes() for path in ledgers.glob("events-*.jsonl")):
        return ""
    events = [event for path in ledgers.glob("events-*.jsonl") for event in read_events(path)[0]]
    struck = any(event["kind"] == "fire" and event["world"] > 1 for event in events)
    alone = not any(event.get("agent") for event in events)
    return f"a rank was killed, and the others gave no sign of life for {_SILENCE:.0f} s" if struck and alone else ""
