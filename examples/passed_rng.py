"""A dataset gets the RNG of each sample as an argument, and a new process continues with the same numbers.

python examples/passed_rng.py
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import resumable


class Samples(Dataset[Any]):
    """Numbers with noise, of which some are masked."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return 12

    def __getitem__(self, index: int, rng: resumable.SampleRNG | None = None) -> Any:
        """Return one sample; without an RNG, it is not augmented."""
        sample = torch.full((3,), float(index))
        if rng is None:
            return sample
        sample += float(rng.normal())  # a numpy.random.Generator
        sample *= torch.rand(3, generator=rng.torch) < rng.python.uniform(0.5, 0.9)
        return sample


def mixup(samples: list[Any], rng: resumable.SampleRNG) -> Any:
    """Mix the samples of a batch, with the RNG of the batch."""
    batch = torch.stack(samples)
    return torch.lerp(batch, batch[rng.permutation(len(batch))], float(rng.beta(0.2, 0.2)))


if __name__ == "__main__":
    collate: Any = mixup  # the types of PyTorch do not know the RNG
    source: Any = DataLoader(Samples(), batch_size=4, shuffle=True, num_workers=2, collate_fn=collate)
    loader: resumable.Loader[Any] = resumable.wrap(source, seed=0, randomness="passed")
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
    print("a new process continued with the same", len(rest), "batches, noise and mixing included")
