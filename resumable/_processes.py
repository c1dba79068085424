"""Processes: what `/proc` says about them, and how they are killed with all processes that they started.

A *mark* is an environment variable with a unique value, which all children of a process inherit. It is needed because
torchrun starts every rank in a separate session, which signals to the command's process group do not reach. Without
`/proc`, only the group is known.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PATIENCE", "POLL", "Stat", "kill_all", "living_members", "look_at"]

_PROC = Path("/proc")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # torch's workers put batches there, with their pid in the name
POLL = 0.005  # seconds
PATIENCE = 30.0  # seconds for processes to end after their parent, on a busy machine


class Stat(NamedTuple):
    """A process, as `/proc` shows it.

    Args:
        state: a letter.
        group: number of its process group.
        started: when it was started, in ticks since the start of the machine.
    """

    state: str
    group: int
    started: int

    @property
    def lives(self) -> bool:
        """Whether it has not ended; a zombie has, although its parent has not noticed yet."""
        return self.state not in {"Z", "X"}

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped by SIGSTOP or a debugger."""
        return self.state in {"T", "t"}


def look_at(process: int | str) -> Stat | None:
    """Return what `/proc` says about a process; None if it is gone, or if there is no `/proc`.

    Args:
        process: its number, or `self`.
    """
    try:
        text = (_PROC / str(process) / "stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()  # the name before it may contain anything
        return Stat(fields[0], int(fields[2]), int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


def kill_all(mark: str, group: int) -> None:
    """Kill the processes of a group and those with a mark, and wait until all have ended.

    Args:
        mark: `NAME=value` of an environment variable that they were started with; empty for none.
        group: its number; 0 for none.
    """
    members: set[int] = set()
    patience = time.monotonic() + PATIENCE
    while (found := living_members(group, mark)) and time.monotonic() < patience:
        members.update(found)
        for member in found:
            with suppress(ProcessLookupError, PermissionError):
                (os.kill if _has_proc() else os.killpg)(member, signal.SIGKILL)
        time.sleep(POLL)
    _remove_shared_memory(members)


def living_members(group: int, mark: str = "") -> list[int]:
    """Find the living processes of a group and those with a mark; zombies are excluded if the system has `/proc`.

    Args:
        group: its number; 0 for none.
        mark: `NAME=value` of an environment variable that they were started with; empty for none.
    """
    if _has_proc():
        numbers = (int(place.name) for place in _PROC.glob("[0-9]*"))
        return [number for number in numbers if _is_member(number, group, mark)]
    if group:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, 0)
            return [group]
    return []


def _remove_shared_memory(members: Iterable[int]) -> None:
    """Remove batches that killed workers wrote and no process received."""
    for member in members:
        for file in _SHARED_MEMORY.glob(f"torch_{member}_*"):
            file.unlink(missing_ok=True)


def _has_proc() -> bool:
    return look_at("self") is not None


def _is_member(number: int, group: int, mark: str) -> bool:
    stat = look_at(number)
    if stat is None or not stat.lives:
        return False
    return (group != 0 and stat.group == group) or _has_mark(number, mark)  # kernel processes have group 0


def _has_mark(number: int, mark: str) -> bool:
    if not mark:
        return False
    try:
        variables = (_PROC / str(number) / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or belongs to another user
        return False
    return os.fsencode(mark) in variables
