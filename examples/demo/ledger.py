"""The ledger: what a training process did, line by line, so that nothing is lost when it is killed.

An event is a JSON object on a line, with its kind, the time, and the *count* of batches that are in the weights:

    start                              the process is about to load its state
    begin        epoch, step           where the program goes on
    received                           a batch is there
    batch        epoch, step, digest   it was trained on, and where the program says it stands after it
    save         state_bytes           size of the loader's part of the checkpoint
    epoch-end                          the epoch's last batch is done, its evaluation begins
    evaluation   score                 epoch, loss and accuracy
    end          weights, scores       digest of the weights, and the evaluations that the checkpoints carried
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
    """Writes events, each with one system call: a kill of the process leaves all the lines before it.

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
    """Read the events after an offset; none where there is no file yet. A line that was cut off does not count.

    Returns:
        The events, and the offset after the last whole line.
    """
    if not path.exists():
        return [], offset
    with path.open("rb") as file:
        file.seek(offset)
        lines, newline, _ = file.read().rpartition(b"\n")
    return [json.loads(line) for line in lines.splitlines()], offset + len(lines) + len(newline)
