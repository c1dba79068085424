"""Datasets for the tests of logical streams, and a training process over one that can be killed.

    python logical_data.py FOLDER WORKERS STOP

reads the batches of the run, writes each to FOLDER/read, saves the state to FOLDER/state after it, and kills itself
after STOP batches (0: it ends by itself).
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import resumable
from resumable.testing import digest

if TYPE_CHECKING:
    from collections.abc import Iterator

EPOCHS = 2
Sample = tuple[int, int, int, float, float, float]


def sample(number: int) -> Sample:
    """What a dataset can see and draw: its stream, the seed of that, and every global generator."""
    info = get_worker_info()
    assert info is not None
    seen = (info.num_workers * 100 + info.id, info.seed % 1_000_003)
    return number, *seen, random.random(), float(np.random.rand()), torch.rand(()).item()


class Replayed(IterableDataset[Sample]):
    """Without a state; `lengths` are those of the streams, in turn."""

    epoch = -1

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths or (5, 8, 2)
        self.passes = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def length(self) -> int:
        info = get_worker_info()
        assert info is not None
        assert self.passes <= 1, "the copy was read before"
        return self.lengths[info.id % len(self.lengths)]

    def __iter__(self) -> Iterator[Sample]:
        self.passes += 1
        return (sample(1000 * self.epoch + number) for number in range(self.length()))


class Stateful(Replayed):
    """With a state that `__iter__` goes on from."""

    index = 0

    def __iter__(self) -> Iterator[Sample]:
        self.passes += 1
        length = self.length()
        while self.index < length:
            self.index += 1
            yield sample(1000 * self.epoch + self.index)

    def state_dict(self) -> dict[str, Any]:
        return {"index": self.index}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.index = state["index"]


def make(
    dataset: IterableDataset[Any], workers: int, options: dict[str, Any] | None = None, **of_loader: Any
) -> resumable.Loader[Any]:
    return resumable.wrap(
        DataLoader(dataset, batch_size=2, num_workers=workers, **of_loader), **{"streams": 3, **(options or {})}
    )


def train(folder: Path, workers: int, stop: int) -> None:
    """Run, or go on with the run of a process that was killed."""
    loader, saved = make(Stateful(), workers), folder / "state"
    if saved.exists():
        loader.load_state_dict(pickle.loads(saved.read_bytes()))  # noqa: S301  # our own
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch:
            with (folder / "read").open("a") as lines:
                lines.write(f"{epoch.number} {digest(batch)}\n")
            (folder / "new").write_bytes(pickle.dumps(loader.state_dict()))
            (folder / "new").replace(saved)
            if loader.global_step == stop:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
