"""The ledger: the actions of a training process, line by line, so nothing is lost when it is killed.

An event is a JSON object on one line, with its kind, the time, and the *count* of batches in the weights:

    start                              the process is about to load its state
    begin        epoch, step           where the program continues
    received                           a batch has arrived
    batch        epoch, step, digest   it was trained on, and the program's position after it
    save         state_bytes           size of the loader's part of the checkpoint
    epoch-end                          the epoch's last batch is done, its evaluation starts
    evaluation   score                 epoch, loss and accuracy
    end          weights, scores       digest of the weights, and the evaluations in the checkpoints
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Ledger", "read_events"]


class Ledger:
    """Writes events, each with one system call: a kill of the process leaves all earlier lines intact.

    Args:
        path: of a file that does not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)

    def write(self, kind: str, count: int, **values: Any) -> None:
        """Write an event."""
        event = {"kind": kind, "count": count, "time": time.monotonic(), **values}
        os.write(self._file, json.dumps(event).encode() + b"\n")


def read_events(path: Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Read the events after an offset; none if there is no file yet. An incomplete line does not count.

    Returns:
        The events, and the offset after the last complete line.
    """
    if not path.exists():
        return [], offset
    with path.open("rb") as file:
        file.seek(offset)
        lines, newline, _ = file.read().rpartition(b"\n")
    return [json.loads(line) for line in lines.splitlines()], offset + len(lines) + len(newline)
