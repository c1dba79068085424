"""Which process wrote a record, and whether it is alive: its number alone is given to another one after some time."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

__all__ = ["host_of_this", "is_alive", "start_of"]

_PROC = Path("/proc")


def host_of_this() -> int:
    """Return what distinguishes the machine, its start and its space of process numbers from others."""
    parts = [platform.node(), _text(_PROC / "sys/kernel/random/boot_id")]
    if (space := _PROC / "self/ns/pid").is_symlink():
        parts.append(str(space.readlink()))
    digest = hashlib.blake2b("\n".join(parts).encode(), digest_size=8, person=b"resumable-host")
    return int.from_bytes(digest.digest(), "little")


def start_of(pid: int) -> int | None:
    """Return when a process was started, in ticks of the machine; None where there is none, or only what is left of it.

    Where the system does not say, 0 stands for any process of that number.
    """
    if stat := _text(_PROC / str(pid) / "stat"):
        fields = stat.rpartition(")")[2].split()  # before it is the name, which may have anything in it
        return None if fields[0] in {"Z", "X"} else int(fields[19])
    return None if _PROC.joinpath("self/stat").exists() or not _exists(pid) else 0


def is_alive(pid: int, started: int, host: int) -> bool | None:
    """Return whether a process is alive, or None where it is one of another machine."""
    return start_of(pid) == started if host == host_of_this() else None


def _exists(pid: int) -> bool:
    if os.name == "nt":  # where a signal of 0 is no question
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
