"""The ledger: what each watched process did, one JSON object per line, so that nothing is lost when it is killed.

kind       fields besides time, pid, point, number (of the failpoint in this process), rank, world
start      attempt, restarts, agent                   how often an agent has restarted its ranks; is there one
wrapped                                               a loader was made
point                                                 a failpoint of which nothing else is said
fetch      loader                                     a batch is about to be read
batch      loader, epoch, position, step, acked,      a batch was delivered; by a loader for an evaluation or not
           evaluation, indices (or null), digests
ack        loader, epoch, position, step              how far is acknowledged
state      loader, epoch, position, step, says        where a state was taken, and the place that it names
load       loader, says                               the place that a state names which is about to be loaded
loaded     loader, epoch, position, step              where the loader stands after that
saving     root, store, step, places, parts, lost,    a checkpoint of a store begins; places of the loaders in it, its
           generators                                 parts by path, and digests of generators
saved      root, store, step                          it is committed
restored   root, store, step                          a checkpoint that a store gave; step is null for none
half       name                                       a file of torch.save has its first half
wrote      name, store, step, places, parts, lost,    it is written, and holds this: its path in the case, and
           generators, aside                          its series in place of a store; whether another thread did it
renamed    old, series, name, store, step, aside      a file that was saved has another name, and another series
unnamed                                               something was saved to no file
update     after, store, step, optimizer, weights,    the first step of an optimizer after a checkpoint was saved or
           optimizer_parts, stands                    restored: what it goes on from
file       path                                       a file of a checkpoint on its way to the disk
save       step, places                               a checkpoint of the Trainer
model      elements                                   how many numbers torch trains here, where it does
weights    digest, lost                               of the final weights
fire       fault                                      the number of the fault that happens now

What leads outside of the case is in files of their own, `outside-*.jsonl`, with fewer fields:

written    path                                       a folder that was written to, redirected into the case
read       path                                       a file that `torch.load` read
in place   path, over                                 a file was written under its own name, over an older one
read in place path                                    a file that an earlier start wrote so was read
refused    why                                        the process ended itself
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
    """Appends events to a file of this process; each is one write, so that a kill leaves whole lines.

    Args:
        directory: of one attempt's ledgers.
        name: beginning of the file's name.
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
    """Read the whole lines from an offset on.

    Returns:
        The events, and the offset after them.
    """
    with path.open("rb") as file:
        file.seek(offset)
        lines = file.read().split(b"\n")
    whole = [line for line in lines[:-1] if line]
    return [json.loads(line) for line in whole], offset + sum(len(line) + 1 for line in lines[:-1])
