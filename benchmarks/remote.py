"""Processes for measurements, seen from the process that compares them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from typing import Any, Self

__all__ = ["MeasurementError", "MissingLibraryError", "NoAnswerError", "Pool", "Remote"]

_TRIES = 3


class MissingLibraryError(Exception):
    """A contender's library is not installed; the message is its name."""


class MeasurementError(Exception):
    """A measurement failed; the message is the output of its process."""


class NoAnswerError(MeasurementError):
    """A process did not answer within its limit."""


class Remote:
    """A fresh Python process that holds one task at a time; a context manager.

    Attributes:
        limit: seconds that a call may take, None without a limit. After it, the call is repeated in a new process, at
            most twice: some libraries wait forever for workers that have crashed. `make` may take ten times that.
        unanswered: how many requests had no answer.
    """

    def __init__(self) -> None:
        self.limit: float | None = None
        self.unanswered = 0
        self._made: dict[str, Any] | None = None
        self._start()

    def _start(self) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed on exit
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            start_new_session=True,  # its workers form a group with it, and end with it
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._said.close()  # closing twice is harmless

    def make(self, task: str, **options: Any) -> None:
        """Create a task in the process, replacing the previous one.

        Args:
            task: `"module:class"`.
            options: its arguments, in plain values.

        Raises:
            MissingLibraryError: something that it imports is not installed.
            NoAnswerError: no answer within the limit, three times.
            MeasurementError: anything else failed.
        """
        self._made = {"make": task, "options": options}
        self._ask(self._made)

    def call(self, method: str, **options: Any) -> Any:
        """Call a method of the task and return its result; raises the same errors as `make`."""
        return self._ask({"call": method, "options": options})

    def rest(self) -> None:
        """Drop the task, including its worker processes."""
        self._made = None
        self._ask({"rest": True})

    def _ask(self, request: dict[str, Any]) -> Any:
        for tries in range(_TRIES):
            try:
                if tries and self._made is not None and self._made is not request:
                    self._ask_once(self._made)
                return self._ask_once(request)
            except NoAnswerError:
                os.killpg(self._process.pid, signal.SIGKILL)
                self.__exit__()
                self._start()
                self.unanswered += 1
        raise NoAnswerError(f"{request}: no answer within {self.limit} s, {_TRIES} times")

    def _ask_once(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        limit = self.limit and (self.limit if "call" in request else 10 * self.limit)
        if not select.select([self._process.stdout], [], [], limit)[0]:
            raise NoAnswerError(f"{request}: no answer within {limit} s")
        line = self._process.stdout.readline()
        if not line:
            self._said.seek(0)
            raise MeasurementError(f"the process died at {request}:\n{self._said.read()}")
        answer = json.loads(line)
        if "missing" in answer:
            raise MissingLibraryError(answer["missing"])
        if "error" in answer:
            raise MeasurementError(f"{request} failed:\n{answer['error']}")
        return answer["value"]


class Pool:
    """One process per name, started on first use; a context manager."""

    def __init__(self) -> None:
        self._stack, self._remotes = ExitStack(), dict[str, Remote]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def __getitem__(self, name: str) -> Remote:
        if name not in self._remotes:
            self._remotes[name] = self._stack.enter_context(Remote())
        return self._remotes[name]

    def drop(self, name: str) -> None:
        """End the process of a name."""
        self._remotes.pop(name).__exit__()

    def rest(self) -> None:
        """Let every process drop its task."""
        for remote in self._remotes.values():
            remote.rest()
