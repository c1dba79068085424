"""A hand-written loop of torch that saves and restores all that it has to."""

from __future__ import annotations

import random
import sys

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import resumable

EPOCHS, SAMPLES, BATCH, EVERY = 2, 24, 4, 3


class Noise(Dataset[torch.Tensor]):
    """Samples with augmentation that draws from torch's generator."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index / SAMPLES]) + 0.1 * torch.rand(1)


random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)

loader = resumable.wrap(DataLoader(Noise(), batch_size=BATCH, shuffle=True), seed=1)
model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
store = resumable.CheckpointStore("checkpoints", keep=2)
step = 0

if (saved := store.latest()) is not None:
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    if "--ahead" in sys.argv:  # a step further than the weights: a bug
        saved["loader"]["cursor"]["position"] += BATCH
        saved["loader"]["cursor"]["step"] += 1
        saved["loader"]["digest"] = None  # or the loader would see it by itself
    loader.load_state_dict(saved["loader"])
    resumable.rng.load_state_dict(saved["rng"])
    step = saved["step"]


def save() -> None:
    """Write a checkpoint of everything."""
    content = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loader": loader.state_dict(),
        "rng": resumable.rng.state_dict(),
        "step": step,
    }
    store.save(step, content)


for epoch in loader.epochs(EPOCHS):
    for batch in epoch:
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
        step += 1
        if step % EVERY == 0:
            save()
save()
