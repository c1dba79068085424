"""Is the loader the bottleneck? The same training with slow and with fast samples, and how long the loop waited.

python examples/loader_stats.py
"""

from __future__ import annotations

import time

import torch
from torch.utils.data import DataLoader, Dataset

import resumable


class Images(Dataset[torch.Tensor]):
    """Samples that take a few milliseconds to decode, and one that takes far longer."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.2 if index == 42 else self.seconds)
        return torch.full((8,), float(index))


model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for name, seconds in {"slow": 0.004, "fast": 0.0}.items():
    loader = resumable.wrap(DataLoader(Images(seconds), batch_size=8, shuffle=True), seed=0, name=name)
    for batch in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        time.sleep(0.01)
    stats = loader.stats()
    print(f"{name} samples: the loop waited {stats.wait_fraction:.0%} of its time for {stats.batches} batches")
    epoch, step = stats.longest_wait_epoch, stats.longest_wait_step
    assert epoch is not None
    assert step is not None
    samples = loader.sample_indices(epoch=epoch, step=step)
    print(f"  longest, {stats.longest_wait_seconds:.2f} s, for epoch {epoch}, step {step}: the samples {samples}")
