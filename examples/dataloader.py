"""A DataLoader run is stopped in the middle of an epoch, and resumed by a new loader with different workers.

python examples/dataloader.py
"""

from __future__ import annotations

import logging
import random

import torch
from torch.utils.data import DataLoader, Dataset

import resumable

logging.getLogger("resumable").setLevel("ERROR")  # the same stream is read twice on purpose, to compare
Batches = list[tuple[list[int], list[float]]]


class Pictures(Dataset[tuple[int, float]]):
    """Twelve samples, each with an augmentation that uses the global RNGs."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, round(random.random() + torch.rand(()).item(), 3)


def make(workers: int) -> resumable.Loader:
    """Wrap a plain DataLoader; only the number of workers varies."""
    return resumable.wrap(DataLoader(Pictures(), batch_size=4, shuffle=True, num_workers=workers), seed=0)


def train(loader: resumable.Loader, stop_after: int | None = None) -> Batches:
    """Run two epochs; return the delivered batches."""
    seen: Batches = []
    for epoch in loader.epochs(2):
        for indices, augmented in epoch:
            seen.append((indices.tolist(), augmented.tolist()))
            print(f"  epoch {epoch.number} step {loader.cursor.step}: samples {indices.tolist()}")
            if len(seen) == stop_after:
                return seen
    return seen


if __name__ == "__main__":
    print("Run 1, baseline, no workers:")
    baseline = train(make(workers=0))
    print("Run 2, two workers, stopped after batch 4:")
    stopped = make(workers=2)
    before = train(stopped, stop_after=4)
    state = stopped.state_dict()
    print(f"Run 3, one worker, resumed at {state['cursor']}:")
    resumed = make(workers=1)
    resumed.load_state_dict(state)
    assert before + train(resumed) == baseline
    print("Runs 2 and 3 together are run 1: the same samples, order and augmentation.")
