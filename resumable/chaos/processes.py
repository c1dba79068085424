"""The processes of a launch: found by a mark in their environment, and killed.

A mark is a variable with the path of the launch's plan. It is needed because torchrun starts every rank in a separate
session, which signals to the command's process group do not reach. Without `/proc`, only the group is known.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PATIENCE", "POLL", "kill_all", "living_members", "state_of"]

_PROC = Path("/proc")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # torch's workers put batches there, with their pid in the name
POLL = 0.005  # seconds
PATIENCE = 30.0  # seconds for processes to end after their parent, on a busy machine


def kill_all(mark: str, group: int) -> None:
    """Kill the processes of a group and those with a mark, and wait until all have ended."""
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
        mark: `NAME=value` of an environment variable that a process was started with; empty for none.
    """
    if _has_proc():
        return [int(stat.parent.name) for stat in _PROC.glob("[0-9]*/stat") if _is_member(stat, group, mark)]
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
    return (_PROC / "self" / "stat").exists()


def state_of(process: int) -> str:
    """Return the state of a process as the letter in `/proc`; an empty string if it has none."""
    with suppress(OSError, IndexError):
        return (_PROC / str(process) / "stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _is_member(stat: Path, group: int, mark: str) -> bool:
    try:
        state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        if state in {"Z", "X"}:
            return False
        return (group != 0 and int(its_group) == group) or _has_mark(stat, mark)  # kernel processes have group 0
    except (OSError, ValueError):  # it has ended, or belongs to another user
        return False


def _has_mark(stat: Path, mark: str) -> bool:
    if not mark:
        return False
    variables = (stat.parent / "environ").read_bytes().split(b"\0")
    return os.fsencode(mark) in variables
