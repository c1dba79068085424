"""Augmentations of a library use their own RNGs, and continue exactly in a new process.

python examples/own_generators.py
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

import resumable


class Jitter:
    """An augmentation as libraries write it, with an RNG that differs in each process."""

    def __init__(self) -> None:
        """Seed the RNG from the system."""
        self.rng = np.random.default_rng()

    def __call__(self, value: float) -> float:
        """Add noise."""
        return value + float(self.rng.normal())


class Samples(Dataset[float]):
    """Augmented numbers."""

    transforms = Jitter(), Jitter()

    def __len__(self) -> int:
        """Return the number of samples."""
        return 12

    def __getitem__(self, index: int) -> float:
        """Return one sample."""
        return self.transforms[1](self.transforms[0](index))


if __name__ == "__main__":
    source: Any = DataLoader(Samples(), batch_size=4, shuffle=True)
    loader: resumable.Loader[Any] = resumable.wrap(source, seed=0)
    if len(sys.argv) > 1:
        loader.load_state_dict(json.loads(sys.argv[1]))
        print(json.dumps([batch.tolist() for batch in loader]))
        sys.exit()
    batches = iter(loader)
    next(batches)
    state = json.dumps(loader.state_dict())
    rest = [batch.tolist() for batch in batches]
    command = [sys.executable, __file__, state]
    resumed = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603  # ourselves
    assert json.loads(resumed) == rest
    print("a new process continued with the same", len(rest), "batches, noise included")
