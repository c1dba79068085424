"""Launches of a Python program forked from processes that have already imported its slow modules."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, Self

from resumable.errors import ConfigurationError
from resumable.failpoints import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


__all__ = ["Forked", "Preload", "Server", "check_preload"]


_SERVERS = 2  # a program is resumed in a different interpreter, with different hashes, than it was killed in


def check_preload(words: Sequence[str], modules: Sequence[str]) -> None:
    """Verify that a command can be forked.

    Raises:
        ConfigurationError: it is not a program of this Python.
    """
    if not modules:
        return
    own = Path(shutil.which(words[0]) or words[0]).parent.resolve() == Path(sys.executable).parent.resolve()
    is_program = len(words) > 1 and (words[1].endswith(".py") or (words[1] == "-m" and len(words) > 2))  # noqa: PLR2004  # and its name
    if not own or not is_program or not Path(words[0]).name.startswith("python"):
        raise ConfigurationError(
            f"preload can only fork programs of this Python, but the command is {' '.join(words[:3])} ...\nIt must be "
            f"{sys.executable} script.py, or -m module. Leave preload out for any other command."
        )


class Forked:
    """A forked process, with the needed subset of `subprocess.Popen`.

    Attributes:
        pid: its process id; it leads a session.
    """

    def __init__(self, server: Server, number: int, pid: int) -> None:
        self._server, self._number, self.pid = server, number, pid

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs."""
        return self._server.status(self._number)

    def wait(self) -> int:
        """Return its exit status once it has ended."""
        return self._server.wait(self._number)


class Preload:
    """The servers; a `with` block ends them and the processes that they forked.

    Args:
        modules: to import once in each server.
        environment: added to this process's, for the servers and their forks.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._servers = [Server(modules, environment or {}) for _ in range(_SERVERS)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for server in self._servers:
            server.close()

    def server(self, number: int) -> Server:
        """Return the server for the launch that follows this number of launches; never the one of the last launch."""
        return self._servers[number % len(self._servers)]


class Server:
    """A process that has imported modules, and forks the launches of a command.

    Args:
        modules: to import first.
        environment: added to this process's, for the server and its forks.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **environment}
        self._process = subprocess.Popen(  # noqa: S603  # this Python
            [sys.executable, "-m", "resumable.chaos.launch.forkserver", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            env={name: value for name, value in self._environment.items() if name != VARIABLE},
        )
        self._numbers, self._news = count(), Condition()
        self._pids: dict[int, int] = {}
        self._statuses: dict[int, int] = {}
        self._ended = False
        self._reader = Thread(target=self._listen, daemon=True)
        self._reader.start()

    def load(self, modules: Sequence[str]) -> None:
        """Import more modules before the next launch, unless they are already imported."""
        if modules:
            with self._news:
                self._ask(None, list(modules))

    def start(self, words: Sequence[str], directory: Path, environment: Mapping[str, str], output: Path) -> Forked:
        """Fork a launch of a command.

        Args:
            words: the command.
            directory: its working directory.
            environment: added to the server's.
            output: file for its output.
        """
        request = {
            "words": words[1:],
            "directory": str(directory),
            "environment": {**self._environment, **environment},
            "output": str(output),
        }
        with self._news:
            number = next(self._numbers)
            self._ask(number, request)
            self._news.wait_for(lambda: number in self._pids or self._ended)
            self._check()
            return Forked(self, number, self._pids[number])

    def status(self, number: int) -> int | None:
        """Return the exit status of a launch, None while it runs."""
        with self._news:
            if number not in self._statuses:
                self._check()
            return self._statuses.get(number)

    def wait(self, number: int) -> int:
        """Return the exit status of a launch once it has ended."""
        with self._news:
            self._news.wait_for(lambda: number in self._statuses or self._ended)
            return self._statuses.get(number, -1)

    def close(self) -> None:
        """End the server, and kill its forks."""
        with self._process:  # closes the pipes and waits
            pass
        self._reader.join()

    def _ask(self, number: int | None, request: Any) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which is noticed when its answer is awaited
            self._process.stdin.write(json.dumps([number, request]).encode() + b"\n")

    def _check(self) -> None:
        if self._ended:
            raise ConfigurationError(
                "the process that imports the modules of preload ended; its error is shown above.\nCheck their names."
            )

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in iter(self._process.stdout.readline, b""):
            number, pid, *status = json.loads(line)
            with self._news:
                if pid is None:
                    self._statuses[number] = status[0]
                else:
                    self._pids[number] = pid
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()
