"""The processes of a launch: found by a mark in their environment, and killed.

A mark is a variable that names the plan of this launch: torchrun starts every rank in a session of its own, which no
signal to the command's process group reaches. Without `/proc`, the group is all that is known.
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
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # where torch's workers put batches, under their number
POLL = 0.005  # seconds
PATIENCE = 30.0  # seconds for processes to go after the one that started them, on a machine that is busy


def kill_all(mark: str, group: int) -> None:
    """Kill the processes of a group, and those with a mark in their environment, and wait until none is left."""
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
    """Find the living processes of a group and those with a mark, without zombies where the system has `/proc`.

    Args:
        group: its number; 0 for none.
        mark: `NAME=value` of a variable in the environment that a process was started with; empty for none.
    """
    if _has_proc():
        return [int(stat.parent.name) for stat in _PROC.glob("[0-9]*/stat") if _is_member(stat, group, mark)]
    if group:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, 0)
            return [group]
    return []


def _remove_shared_memory(members: Iterable[int]) -> None:
    """Remove batches that killed workers had written, and that no process had taken yet."""
    for member in members:
        for file in _SHARED_MEMORY.glob(f"torch_{member}_*"):
            file.unlink(missing_ok=True)


def _has_proc() -> bool:
    return (_PROC / "self" / "stat").exists()


def state_of(process: int) -> str:
    """Return the state of a process, as `/proc` names it in a letter; an empty text where it has none."""
    with suppress(OSError, IndexError):
        return (_PROC / str(process) / "stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _is_member(stat: Path, group: int, mark: str) -> bool:
    try:
        state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        if state in {"Z", "X"}:
            return False
        return (group != 0 and int(its_group) == group) or _has_mark(stat, mark)  # the kernel's have the group 0
    except (OSError, ValueError):  # it ended in the meantime, or belongs to somebody else
        return False


def _has_mark(stat: Path, mark: str) -> bool:
    if not mark:
        return False
    variables = (stat.parent / "environ").read_bytes().split(b"\0")
    return os.fsencode(mark) in variables
