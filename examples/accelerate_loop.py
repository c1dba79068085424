"""Accelerate, saved in the middle of a gradient accumulation and resumed: python examples/accelerate_loop.py."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import resumable
from resumable.integrations.accelerate import last_whole_checkpoint, prepare

logging.getLogger("resumable").setLevel("ERROR")  # the same stream is read twice on purpose, to compare


def train(folder: Path, crash_at: int | None = None) -> torch.Tensor:
    """Train two epochs of ten batches, from the last complete checkpoint if there is one; return the weights."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 4))
    data = TensorDataset(torch.randn(320, 16), torch.randint(4, (320,)))
    loader = prepare(accelerator, resumable.wrap(DataLoader(data, batch_size=32, shuffle=True), seed=0))
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))

    if checkpoint := last_whole_checkpoint(folder):
        accelerator.load_state(checkpoint)
        print(f"resumes at {loader.cursor}")
    for epoch in loader.epochs(2):
        for inputs, targets in epoch:
            with accelerator.accumulate(model):
                accelerator.backward(torch.nn.functional.cross_entropy(model(inputs), targets))
                optimizer.step()
                optimizer.zero_grad()
            number = epoch.number * len(epoch) + loader.cursor.step  # batches that were trained on
            if number == crash_at:
                print(f"crashes at {loader.cursor}; {loader.global_step} batches are in the weights")
                raise RuntimeError
            if number % 4 == 0:
                accelerator.save_state(str(folder / f"checkpoint_{number}"))
    return torch.nn.utils.parameters_to_vector(net.parameters())


with tempfile.TemporaryDirectory() as name:
    baseline = train(Path(name, "baseline"))
    with contextlib.suppress(RuntimeError):
        train(Path(name, "crashed"), crash_at=15)
    print("The same weights, bit for bit:", train(Path(name, "crashed")).equal(baseline))
