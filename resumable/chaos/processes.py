"""Runs the user's command in a process group of its own, and sees to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Group", "living_members", "remove_shared_memory"]

_PROC = Path("/proc")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # where torch's workers put batches, under their number
_POLL = 0.01  # seconds
_PATIENCE = 5.0  # seconds for processes to go after the one that started them


class Group:
    """A command that runs, with all processes that it starts. Leaving the `with` block kills what is left of them.

    Args:
        command: the command and its arguments.
        directory: in which it runs.
        environment: added to this process's.
        output: file that gets what it prints.
    """

    def __init__(self, command: Sequence[str], directory: Path, environment: Mapping[str, str], output: Path) -> None:
        with output.open("wb") as file:
            self._process = subprocess.Popen(  # noqa: S603  # the user's own command
                command,
                cwd=directory,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._members: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def wait(self, is_overdue: Callable[[], str]) -> tuple[int, str]:
        """Wait for the command's end, or kill it.

        Args:
            is_overdue: says why it is to be killed, or nothing; asked many times per second.

        Returns:
            The exit status, negative for a signal; and why it was killed, or nothing.
        """
        reason = ""
        while self._process.poll() is None:
            reason = is_overdue() or ("it was stopped" if self._is_stopped() else "")
            if reason:
                self.kill()
                break
            time.sleep(_POLL)
        return self._process.wait(), reason

    def orphans(self) -> list[int]:
        """Return the processes that live on after the command's end, however long one waits."""
        patience = time.monotonic() + _PATIENCE
        while (members := living_members(self._process.pid)) and time.monotonic() < patience:
            time.sleep(_POLL)
        return members

    def kill(self) -> None:
        """Kill every process of the group, and wait until none is left."""
        members = living_members(self._process.pid)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.orphans()
        remove_shared_memory(members)

    def _is_stopped(self) -> bool:
        """Tell whether a process of the group was stopped: the others would wait for it."""
        return any(_state(member) in {"T", "t"} for member in living_members(self._process.pid))


def living_members(group: int) -> list[int]:
    """Find the living processes of a group, without zombies where the system has `/proc`."""
    if (_PROC / "self" / "stat").exists():
        return [int(stat.parent.name) for stat in _PROC.glob("[0-9]*/stat") if _lives_in(stat, group)]
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, 0)
        return [group]
    return []


def remove_shared_memory(members: Sequence[int]) -> None:
    """Remove batches that killed workers had written, and nobody had taken yet."""
    for member in members:
        for file in _SHARED_MEMORY.glob(f"torch_{member}_*"):
            file.unlink(missing_ok=True)


def _state(process: int) -> str:
    with suppress(OSError, IndexError):
        return (_PROC / str(process) / "stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _lives_in(stat: Path, group: int) -> bool:
    try:
        state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
    except (OSError, ValueError):  # it ended in the meantime
        return False
    return int(its_group) == group and state not in {"Z", "X"}
