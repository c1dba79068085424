"""Lightning Fabric saves the loader with the model, and resumes from the last save: python examples/fabric.py."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset

import resumable

logging.getLogger("resumable").setLevel("ERROR")  # the same stream is read twice on purpose, to compare


def train(file: Path, crash_at: int | None = None) -> torch.Tensor:
    """Train three epochs of ten batches, from the checkpoint if there is one; return the weights."""
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 4))
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    data = TensorDataset(torch.randn(320, 16), torch.randint(4, (320,)))
    loader = resumable.wrap(DataLoader(data, batch_size=32, shuffle=True), seed=0)  # without setup_dataloaders
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader, "generators": resumable.rng}

    if file.exists():
        fabric.load(file, parts)
        print(f"resumes at {loader.cursor}")
    for epoch in loader.epochs(3):
        for batch in epoch:
            inputs, targets = fabric.to_device(batch)
            optimizer.zero_grad()
            fabric.backward(torch.nn.functional.cross_entropy(model(inputs), targets))
            optimizer.step()
            step = loader.global_step
            if step == crash_at:
                print(f"crashes at {loader.cursor}")
                raise RuntimeError
            if step % 4 == 0:
                fabric.save(file, parts)
    return torch.nn.utils.parameters_to_vector(net.parameters())


with tempfile.TemporaryDirectory() as folder:
    baseline = train(Path(folder, "baseline.ckpt"))
    with contextlib.suppress(RuntimeError):
        train(Path(folder, "crashed.ckpt"), crash_at=15)
    print("The same weights, bit for bit:", train(Path(folder, "crashed.ckpt")).equal(baseline))
