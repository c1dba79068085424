"""Trainings that are run by a server which forks them, so that a run takes half a second and not five."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

KILLED = -9


class Bench:
    """Runs trainings, and those that are not killed only once.

    Args:
        folder: of all runs.
        program: the server: it takes requests, and answers each with how the ranks ended.
        python: the interpreter.
        unharmed: options of runs that are not killed.
    """

    def __init__(self, folder: Path, program: str, python: str | Path = sys.executable, **unharmed: Any) -> None:
        self._folder, self._count, self._unharmed = folder, 0, unharmed
        self._whole: dict[str, Path] = {}
        self._server = subprocess.Popen([python, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def new(self) -> Path:
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        return folder

    def run(self, folder: Path, **options: Any) -> list[int]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps({"folder": str(folder), **options}) + "\n")
        self._server.stdin.flush()
        codes: list[int] = json.loads(self._server.stdout.readline())
        return codes

    def whole(self, **options: Any) -> Path:
        key = json.dumps(options)
        if key not in self._whole:
            self._whole[key] = self.new()
            codes = self.run(self._whole[key], **self._unharmed, **options)
            assert not any(codes), said(self._whole[key])
        return self._whole[key]

    def close(self) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(10)
        self._server.stdout.close()


def lines(folder: Path, rank: int = 0) -> list[list[Any]]:
    return [json.loads(line) for line in (folder / f"log-{rank}").read_text(encoding="utf-8").splitlines()]


def said(folder: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("output-*"))


def attempts(folder: Path, rank: int = 0) -> list[list[list[Any]]]:
    """What each process did, from its start on."""
    found: list[list[list[Any]]] = []
    for line in lines(folder, rank):
        if line[0] == "start":
            found.append([])
        found[-1].append(line)
    return found
