"""Who writes to a store: the process that took the token last; an older one is refused."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from typing import TYPE_CHECKING, Any

from resumable.checkpoint.reports import reporting
from resumable.errors import WriterFencedError

if TYPE_CHECKING:
    from resumable.checkpoint.steps import Steps

__all__ = ["TOKEN", "Writer"]

TOKEN = "WRITER.json"  # in the root; not a secret  # noqa: S105
LENGTH = 256  # bytes, always, so that it is written over in place


class _Process:
    """This process as a writer, and the roots that it has taken."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(8)
        self.taken: set[str] = set()


_processes: dict[int, _Process] = {}  # by their numbers; a fork is a writer of its own


def _this_process() -> _Process:
    return _processes.setdefault(os.getpid(), _Process())


class Writer:
    """Takes a store's token for this process, and sees that it still has it.

    The newest process takes it without asking, as a killed one on another host looks like one that lives.

    Args:
        steps: those of the store.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps, self._path = steps, f"{steps.path}/{TOKEN}"

    def claim(self, failed: str) -> None:
        """Take the token if this process has not had it yet, else see that no other has taken it.

        Args:
            failed: the first line of the error, without its end.

        Raises:
            WriterFencedError: another process has taken it since.
            CheckpointError: the storage failed.
        """
        own, root = _this_process(), self._steps.identity
        with reporting(f"{failed}, as the token of its writer could not be read or written"):
            held = self._read()
            if held is not None and held.get("token") == own.token:
                own.taken.add(root)
            elif held is None or root not in own.taken:
                self._steps.files.make_dir(self._steps.path)
                self._steps.files.put(self._path, _record(own))
                own.taken.add(root)
            else:
                raise WriterFencedError(_fenced(failed, self._steps.root, held))

    def _read(self) -> dict[str, Any] | None:
        """Give what the token says; None without one, and nothing of one that cannot be read."""
        try:
            raw = self._steps.files.read(self._path)
        except FileNotFoundError:
            return None
        with contextlib.suppress(ValueError, TypeError):
            return dict(json.loads(raw))
        return {}


def _record(own: _Process) -> bytes:
    fields = {"token": own.token, "host": socket.gethostname()[:64], "process": os.getpid()}
    return json.dumps(fields).encode().ljust(LENGTH)


def _fenced(failed: str, root: str, held: dict[str, Any]) -> str:
    return (
        f"{failed}: a newer process has become the writer of this store.\n"
        f"  root:          {root}\n"
        f"  this process:  {os.getpid()} on {socket.gethostname()}\n"
        f"  the writer:    {held.get('process', 'unknown')} on {held.get('host', 'unknown')}\n"
        "Two writers would remove each other's checkpoints, so the newest one goes on, and this one has to end. If it "
        "is this run that should go on, end the other one and start this one again: it goes on from `latest()`. If "
        "both should, give each a root of its own."
    )
