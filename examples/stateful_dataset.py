"""A dataset that counts how often each sample was read; the counts are saved in the state of the loader.

python examples/stateful_dataset.py
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import resumable


class Jittered(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Points of two classes, moved further the easier they have become."""

    def __init__(self) -> None:
        self.points = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
        self.strength = torch.zeros(64)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        point = self.points[index]
        self.strength[index] += 0.01  # each time it is read
        return point + self.strength[index] * torch.randn(2), (point.sum() > 0).long()

    def state_dict(self) -> dict[str, Any]:
        """Return how strongly each point is moved."""
        return {"strength": self.strength}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self.strength = state["strength"]


def make() -> resumable.Loader[Any]:
    """Wrap a fresh dataset, as a restarted script does."""
    return resumable.wrap(DataLoader(Jittered(), batch_size=8, shuffle=True), seed=0)


loader = make()
whole, states = [], []
for epoch in loader.epochs(3):
    for samples, _ in epoch:
        whole.append(samples)
        states.append(loader.state_dict())

resumed = make()
resumed.load_state_dict(states[12])
rest = [samples for epoch in resumed.epochs(3) for samples, _ in epoch]
equal = all(torch.equal(a, b) for a, b in zip(rest, whole[13:], strict=True))
print(f"Resumed after batch 13 of {len(whole)}: the other {len(rest)} are the same, bit for bit: {equal}")
