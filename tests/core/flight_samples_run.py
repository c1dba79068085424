"""A training with a flight recorder and workers that dies while one of its samples is read.

python flight_samples_run.py FOLDER WORKERS CONTEXT SAMPLE HOW BLOCKED STEP

The folder gets `truth`, a line for each sample that is begun. Reading the sample BLOCKED never ends; the
fatal one waits for that, and for the training to wait for the batch of STEP.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import resumable

LENGTH, BATCH = 24, 2


class Samples:
    """Their own indices, and one that ends the process that reads it, or all of them."""

    def __init__(self, folder: Path, fatal: int, how: str, blocked: int = -1, step: int = 0) -> None:
        self.folder, self.fatal, self.how, self.blocked, self.step = folder, fatal, how, blocked, step

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        with (self.folder / "truth").open("a") as truth:
            truth.write(f"{worker_number()} {index}\n")
        while index == self.blocked:
            time.sleep(0.01)
        if index == self.fatal:
            self.wait()
            self.die()
        return index

    def wait(self) -> None:
        """Wait for the other worker to be where it stays, and for the training to wait for its batch."""
        for _ in range(6000 if self.blocked >= 0 else 0):
            (record,) = resumable.flight.read(self.folder / "flight")
            begun = {int(line.split()[1]) for line in (self.folder / "truth").read_text().splitlines()}
            if self.blocked in begun and (record.phase, record.step) == ("waiting", self.step):
                return
            time.sleep(0.01)

    def die(self) -> None:
        if self.how == "group":
            os.killpg(0, signal.SIGKILL)
        elif self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.how == "exit":
            os._exit(0)
        else:
            ctypes.string_at(0)


def worker_number() -> int:
    torch_data: Any = sys.modules.get("torch.utils.data")
    info = None if torch_data is None else torch_data.get_worker_info()
    return -1 if info is None else info.id


def wrap(samples: Any, folder: Path, workers: int, context: str | None = None) -> resumable.Loader:
    if not workers and context is None:
        return resumable.wrap(samples, batch_size=BATCH, shuffle=True, flight_recorder=folder / "flight", identity="it")
    from torch.utils.data import DataLoader  # noqa: PLC0415  # takes seconds, and most runs do without

    ahead: Any = {"prefetch_factor": 3, "multiprocessing_context": context} if workers else {}
    loader: Any = DataLoader(samples, batch_size=BATCH, shuffle=True, num_workers=workers, **ahead)
    return resumable.wrap(loader, flight_recorder=folder / "flight", identity="it")


if __name__ == "__main__":
    place, how = Path(sys.argv[1]), sys.argv[5]
    data = Samples(place, int(sys.argv[4]), how, *map(int, sys.argv[6:]))
    for _ in wrap(data, place, int(sys.argv[2]), sys.argv[3]):
        pass
