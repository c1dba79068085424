"""Ensures that no training process outlives the chaos run, even if the chaos run dies from SIGKILL.

A second process reads from a pipe that only the chaos run writes to. The chaos run reports each command before its
launch, and again when all of its processes have ended. When the pipe closes for any reason, the process kills the rest.
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

from resumable._processes import kill_all
from resumable.failpoints import VARIABLE

__all__ = ["Reaper"]

_SETTLING = 0.2  # seconds for a process that is being started to get its mark


class Reaper:
    """Kills the processes that a chaos run leaves; a `with` block around everything that launches commands.

    Attributes:
        stopping: set when no command may run any longer; code that waits for one should stop waiting.
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
        """Stop guarding them: all have ended."""
        self._tell(mark, None)

    def _tell(self, mark: str, group: int | None) -> None:
        assert self._process.stdin is not None
        with (
            self._lock,
            suppress(BrokenPipeError, ValueError),
        ):  # it was killed or is closed, and guards nothing
            self._process.stdin.write(json.dumps([mark, group]).encode() + b"\n")


def main() -> None:
    """Listen until the chaos run ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends only with the chaos run
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
