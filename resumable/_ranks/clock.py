"""Since when this process lives, so that what processes before it left in a store that outlives them is told apart.

What a rank of this run posts, it posts after the process group was made, for which all ranks had to be there: so after
each of them was started. Clocks of hosts have to agree to about the second that a start takes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["started"]

_imported = time.time()
_starts: dict[int, float] = {}  # by process, as a fork copies this module


def started() -> float:
    """Return when this process was started, in seconds of the clock on the wall."""
    pid = os.getpid()
    if pid not in _starts:
        _starts.clear()
        _starts[pid] = _of_system()
    return _starts[pid]


def _of_system() -> float:
    now = time.time()
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        up = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
        age = up - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return _imported
    return now - age if age >= 0 else _imported
