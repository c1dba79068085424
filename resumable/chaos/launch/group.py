"""Runs the user's command, and cleans up all processes that it starts.

There may be several ranks, an agent such as torchrun that started them, and ranks that wait for a dead one.
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING, Protocol, Self

from resumable._processes import PATIENCE, POLL, kill_all, living_members, look_at
from resumable.chaos.ledger import read_events
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
SURVIVE = {"agent", "all"}  # targets whose ranks may survive; they are killed immediately, as a job scheduler does
_SILENCE = 10.0  # seconds without progress of ranks that have lost one
_LOOK = 0.25  # seconds between two scans of all processes


class StoppedError(Exception):
    """The chaos run was interrupted, and no longer waits for any command."""


class Guard(Protocol):
    """Kills processes if this process ends for any reason: the reaper."""

    stopping: Event

    def guard(self, mark: str, group: int = 0) -> None:
        """Kill the processes with a mark in their environment, and of a group if it is known, if this process ends."""
        ...

    def release(self, mark: str) -> None:
        """Stop guarding them: all have ended."""
        ...


class Group:
    """A running command with all processes that it starts. Leaving the `with` block kills those that are left.

    Args:
        command: the command and its arguments.
        directory: its working directory.
        environment: added to this process's; contains the variable.
        output: file for its output.
        reaper: kills the processes if this process ends.
        preload: forks the command; None to launch it directly.
        variable: environment variable with a unique value for this launch, which identifies its processes.
    """

    def __init__(  # noqa: PLR0913  # the parts of a process
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
        """Wait until the command ends, or kill it.

        Args:
            is_overdue: returns why it must be killed, or an empty string; called many times per second.

        Returns:
            The exit status, negative for a signal; and why it was killed, or an empty string.

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
        """Return the processes that outlive the command, after they had time to end."""
        patience = time.monotonic() + PATIENCE
        while (members := self._members()) and time.monotonic() < patience:
            time.sleep(POLL)
        return members

    def kill(self) -> None:
        """Kill every process that the command started, and wait until all have ended."""
        kill_all(self._mark, self._process.pid)
        self._process.wait()

    def _members(self) -> list[int]:
        return living_members(self._process.pid, self._mark)

    def _is_stopped(self) -> bool:
        """Return whether one of the processes is stopped; the others would wait for it."""
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return False
        self._looked = now
        return any((stat := look_at(member)) is not None and stat.is_stopped for member in self._members())


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
            f"{command[0]} cannot be started: {error.strerror}.\nThe command is launched without a shell. Name the "
            "program that runs it, as in: bash train.sh"
        ) from error


def environment_of_agents() -> dict[str, str]:
    """Return what torchrun needs to restart ranks.

    Without it, restarted ranks read the addresses of the dead ones from torchrun's shared store, and cannot connect:
    https://github.com/pytorch/pytorch/issues/135712. A value that is already set takes precedence.
    """
    return {SHARED_STORE: os.environ.get(SHARED_STORE, "1")}


def wait_for_the_dead(fault: Fault | None, silent: float, ledgers: Path) -> str:
    """Explain why a command must be killed whose ranks wait for a killed one, as collectives do for minutes.

    An agent ends such ranks, and may restart them, which takes time. Without an agent, nothing ends them.

    Args:
        fault: of this launch.
        silent: seconds without progress.
        ledgers: their directory.
    """
    if fault is None or fault.kind != "kill" or silent <= _SILENCE:
        return ""
    if not any(b'"fire"' in path.read_bytes() for path in ledgers.glob("events-*.jsonl")):
        return ""
    events = [event for path in ledgers.glob("events-*.jsonl") for event in read_events(path)]
    struck = any(event["kind"] == "fire" and event["world"] > 1 for event in events)
    alone = not any(event.get("agent") for event in events)
    return f"a rank was killed, and the others made no progress for {_SILENCE:.0f} s" if struck and alone else ""
