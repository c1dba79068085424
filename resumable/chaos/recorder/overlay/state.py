"""State shared by the parts of the overlay: the active view, and the ledger of its events."""

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
        view: None until a plan is active; without one, nothing is redirected.
        ledger: directory of the files that record redirections.
        recent: the last file outside the case that was opened for reading; it may be the checkpoint.
        installed: whether the functions are replaced.
        in_place: files of the case that this process wrote in place, and whether they existed before.
        removed: files among them that it removed afterwards.
        read: files of the case that it read before writing them.
        earlier: files that earlier launches wrote in place; None until they are looked up.
        saves: handles files that are saved, loaded and renamed; None if nothing is recorded.
        local: state of this thread.
        trusted: context in which the audit hook ignores this thread.
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
        """Record once that a path was redirected or read."""
        if (kind, path) not in self._told:
            self._told.add((kind, path))
            self._write(kind=kind, path=path)

    def tell_file(self, kind: str, name: str, **more: Any) -> None:
        """Record an action on a file of the case."""
        self._write(kind=kind, path=name, time=time.time(), **more)

    def refuse(self, why: str) -> NoReturn:
        """End this process, and report the reason to the chaos run."""
        self._write(kind="refused", why=why)
        with suppress(Exception):
            sys.stderr.write(f"resumable chaos: {why}\n")
            sys.stdout.flush()
            sys.stderr.flush()
        posix._exit(REFUSED)  # noqa: SLF001  # public as os._exit; an exception could be caught, and training continue

    def _write(self, **event: Any) -> None:
        path = f"{self.ledger}/outside-{os.getpid()}.jsonl"
        with self.trusted():
            file = posix.open(path, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | posix.O_CLOEXEC, 0o644)
            try:
                posix.write(file, json.dumps(event).encode() + b"\n")
            finally:
                posix.close(file)


STATE = State()
