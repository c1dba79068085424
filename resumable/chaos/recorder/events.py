"""The ledger: the actions of each observed process, one JSON object per line, so nothing is lost if it is killed.

kind       fields in addition to time, pid, point, number (of the failpoint in this process), rank, world
start      attempt, restarts, agent                   how often an agent has restarted its ranks; whether there is one
wrapped                                               a loader was created
point                                                 a failpoint without further fields
fetch      loader                                     a batch is about to be read
batch      loader, epoch, position, step, acked,      a batch was delivered; whether by a loader for evaluation
           evaluation, indices (or null), digests,
           generators, line, indexed                  by which loop of the program, and whether by `enumerate`
ack        loader, epoch, position, step              the acknowledged position
state      loader, epoch, position, step, says        the position at which a state was saved, and the one in the state
load       loader, says                               the position in a state that is about to be loaded
loaded     loader, epoch, position, step              the loader's position after that
saving     root, store, step, places, parts, lost,    a store starts to save a checkpoint; positions of the loaders in
           generators                                 it, its parts by path, and digests of the RNGs
saved      root, store, step                          it is committed
restored   root, store, step                          a checkpoint that a store returned; step is null for none
half       name                                       torch.save has written the first half of a file
wrote      name, store, step, places, parts, lost,    it is complete: its path in the case and its content, its series
           generators, aside                          instead of a store; whether another thread wrote it
renamed    old, series, name, store, step, aside      a saved file has a new name and a new series
unnamed                                               something was saved to no file
stepped                                               a step of an optimizer, after the first batch
update     after, store, step, optimizer, weights,    the first step of an optimizer after a checkpoint was saved or
           optimizer_parts, stands, backward          restored: its state before that step, and whether gradients were
                                                      computed since the checkpoint
file       path                                       a file of a checkpoint on its way to disk
save       step, places                               a checkpoint of the Trainer
model      elements                                   number of parameters that PyTorch trains here, if any
weights    digest, lost                               of the final weights
fire       fault                                      number of the fault that happens now

Events about files are in separate files, `files-*.jsonl`, with fewer fields:

read       path                                       a file outside the case that `torch.load` read
appended   path, size                                 a file of so many bytes was opened to append
in place   path, over                                 a file was written under its final name, or over an older one
read in place path                                    a file that an earlier launch wrote in place was read
stopped    why                                        the process ended itself
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Writer", "read_events"]


class Writer:
    """Appends events to a file of this process, each with a single write, so a kill leaves only complete lines.

    Args:
        directory: of one attempt's ledgers.
        name: prefix of the file name.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._pid = os.getpid()
        path = directory / f"{name}-{self._pid}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, kind: str, **fields: Any) -> None:
        """Append an event."""
        event = {"kind": kind, "time": time.time_ns() / 1e9, "pid": self._pid, **fields}
        os.write(self._file, json.dumps(event).encode() + b"\n")


def read_events(path: Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Read the complete lines after an offset.

    Returns:
        The events, and the offset after them.
    """
    with path.open("rb") as file:
        file.seek(offset)
        lines = file.read().split(b"\n")
    whole = [line for line in lines[:-1] if line]
    return [json.loads(line) for line in whole], offset + sum(len(line) + 1 for line in lines[:-1])
