"""A library's augmentations draw from generators of their own, and go on exactly in a new process.

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
    """An augmentation as libraries write them, with a generator that is another one in each process."""

    def __init__(self) -> None:
        """Seed the generator by the system."""
        self.rng = np.random.default_rng()

    def __call__(self, value: float) -> float:
        """Add noise."""
        return value + float(self.rng.normal())


class Samples(Dataset[float]):
    """Numbers, augmented."""

    transforms = Jitter(), Jitter()

    def __len__(self) -> int:
        """Count them."""
        return 12

    def __getitem__(self, index: int) -> float:
        """Return one."""
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
    print("a new process went on with the same", len(rest), "batches, noise included")
