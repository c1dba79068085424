"""Sees to it that no training process outlives the chaos run, even where that is killed with SIGKILL.

A second process reads from a pipe that only the chaos run writes to: of each command before it is started, and again
when nothing is left of it. When the pipe closes, however that came about, it kills what is left of the others.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from threading import Event, Lock
from typing import Self

from resumable.chaos.processes import kill_all
from resumable.failpoints import VARIABLE

__all__ = ["Reaper"]

_SETTLING = 0.2  # seconds in which a process that was being started gets its mark


class Reaper:
    """Kills what the chaos run leaves behind; used as a `with` block around everything that starts commands.

    Attributes:
        stopping: set where no command is to run any longer; whoever waits for one is to give up.
    """

    def __init__(self) -> None:
        self.stopping = Event()
        self._lock = Lock()
        environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "resumable.chaos.launch.reaper"],
            stdin=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the chaos run
            env=environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stopping.set()
        with self._process:  # closes the pipe and waits
            pass

    def guard(self, mark: str, group: int = 0) -> None:
        """Kill the processes with a mark in their environment, and of a group if it is known, if this process ends."""
        self._tell(mark, group)

    def release(self, mark: str) -> None:
        """Forget them: nothing is left of them."""
        self._tell(mark, None)

    def _tell(self, mark: str, group: int | None) -> None:
        assert self._process.stdin is not None
        with (
            self._lock,
            suppress(BrokenPipeError, ValueError),
        ):  # it was killed, or is closed, and guards nothing
            self._process.stdin.write(json.dumps([mark, group]).encode() + b"\n")


def main() -> None:
    """Listen until the chaos run ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with the chaos run, and not before it
    guarded: dict[str, int] = {}
    for line in sys.stdin:
        mark, group = json.loads(line)
        if group is None:
            guarded.pop(mark, None)
        else:
            guarded[mark] = group
    if guarded:
        _kill(guarded)
        time.sleep(_SETTLING)
        _kill(guarded)


def _kill(guarded: dict[str, int]) -> None:
    for mark, group in guarded.items():
        kill_all(mark, group)


if __name__ == "__main__":
    main()
