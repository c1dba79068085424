"""A loop over a `StatefulDataLoader`, as torchdata's users write it; `--bug NAME` plants a bug."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from resumable.torch import StatefulDataLoader

BUG = sys.argv[2] if sys.argv[1:2] == ["--bug"] else ""
SAMPLES, BATCH, EPOCHS = 12, 4, 2


class Noise(Dataset[torch.Tensor]):
    """Samples with a random augmentation; with a bug, its generator is in no state."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        unseeded = np.random.default_rng().random() if BUG == "unseeded" else 0.0
        return torch.tensor([index / SAMPLES]) + 0.1 * torch.rand(1) + unseeded


torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
loader = StatefulDataLoader(Noise(), batch_size=BATCH, shuffle=True)
first = step = 0
if Path("last.pt").exists():
    saved: dict[str, Any] = torch.load("last.pt")
    model.load_state_dict(saved["model"])
    if BUG != "optimizer not restored":
        optimizer.load_state_dict(saved["optimizer"])
    if BUG != "loader not loaded":
        loader.load_state_dict(saved["loader"])
    first, step = saved["epoch"], saved["step"]


def save(epoch: int) -> None:
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
    torch.save({**content, "epoch": epoch, "step": step}, "last.new")
    Path("last.new").replace("last.pt")


for epoch in range(first, EPOCHS):
    for batch in loader:
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
        step += 1
        save(epoch)
