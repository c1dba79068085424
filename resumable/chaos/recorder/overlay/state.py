"""What the parts of the overlay share: the view, if one is in force, and the ledger of what came of it."""

from __future__ import annotations

import json
import os
import posix
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from resumable.chaos.recorder.overlay.thread import THREAD, trusted

if TYPE_CHECKING:
    from typing import NoReturn

    from resumable.chaos.recorder.overlay.view import View

__all__ = ["REFUSED", "STATE"]

REFUSED = 78  # exit status of a process that was stopped: EX_CONFIG


class State:
    """The state of this process.

    Attributes:
        view: None until a plan is in force; then nothing is redirected.
        ledger: directory of the files that say what was redirected.
        recent: the file outside of the case that was opened last for reading; it may be the checkpoint.
        installed: whether the functions are in their places.
        in_place: files of the case that this process wrote in place, and whether there had been one.
        removed: those that it removed after that.
        read: files of the case that it read before it wrote them.
        earlier: files that earlier starts wrote in place; None until it is looked.
        saves: is told of files that are saved, loaded and renamed; None where nothing is recorded.
        local: of this thread.
        trusted: the context in which the audit hook passes what this thread does.
    """

    def __init__(self) -> None:
        self.view: View | None = None
        self.ledger = self.recent = ""
        self.installed = False
        self.saves: Any = None
        self.in_place: dict[str, bool] = {}
        self.removed: set[str] = set()
        self.read: set[str] = set()
        self.earlier: set[str] | None = None
        self.local, self.trusted = THREAD, trusted
        self._told: set[tuple[str, str]] = set()

    def tell(self, kind: str, path: str) -> None:
        """Write down once that a path was redirected or read."""
        if (kind, path) not in self._told:
            self._told.add((kind, path))
            self._write(kind=kind, path=path)

    def tell_file(self, kind: str, name: str, **more: Any) -> None:
        """Write down what was done with a file of the case."""
        self._write(kind=kind, path=name, time=time.time(), **more)

    def refuse(self, why: str) -> NoReturn:
        """End this process, and let the chaos run say why."""
        self._write(kind="refused", why=why)
        with suppress(Exception):
            sys.stderr.write(f"resumable chaos: {why}\n")
            sys.stdout.flush()
            sys.stderr.flush()
        posix._exit(REFUSED)  # noqa: SLF001  # public as os._exit; an exception might be caught, and training go on

    def _write(self, **event: Any) -> None:
        path = f"{self.ledger}/outside-{os.getpid()}.jsonl"
        with self.trusted():
            file = posix.open(path, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | posix.O_CLOEXEC, 0o644)
            try:
                posix.write(file, json.dumps(event).encode() + b"\n")
            finally:
                posix.close(file)


STATE = State()
