"""What can go wrong in a process, done by the process itself at a failpoint."""

from __future__ import annotations

import errno
import os
import resource
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FIRING", "ChaosError"]

_LONG = 3600.0  # seconds: whoever waits for this is to be killed
_SLOW = 0.5  # seconds
_DAY = 86400.0  # seconds
_SPARE = 1 << 20  # bytes that can still be allocated when memory is out


class ChaosError(RuntimeError):
    """Raised on purpose by a chaos run."""


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _hang() -> None:
    end = time.monotonic() + _LONG
    while time.monotonic() < end:
        time.sleep(1.0)


def _raise() -> None:
    raise ChaosError("an exception, raised on purpose")


def _run_out_of_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _SPARE, resource.RLIM_INFINITY))
    bytearray(2 * _SPARE)  # raises a MemoryError


def _fail_storage() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def _fill_storage() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _slow_down() -> None:
    time.sleep(_SLOW)


def _turn_clock(by: float) -> None:
    original = time.time
    time.time = lambda: original() + by


FIRING: dict[str, Callable[[], None]] = {
    "kill": _kill,
    "term": _terminate,
    "stop": _stop,
    "hang": _hang,
    "raise": _raise,
    "oom": _run_out_of_memory,
    "eio": _fail_storage,
    "enospc": _fill_storage,
    "slow": _slow_down,
    "clock-forward": lambda: _turn_clock(_DAY),
    "clock-back": lambda: _turn_clock(-_DAY),
}
