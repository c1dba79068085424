"""Correct loops of torch that a harness may take for wrong ones; each argument is a way to be so.

--two-stores   the newest checkpoint goes to a store of its own, after the best one: a kill may come between
--infinite     a scheduler whose best loss is infinite at first, and a mask of minus infinity in the model
--clock        checkpoints by the time, so that each run saves other steps; some are saved by their number, too
--fewer        a run that is broken comes by fewer points than the baseline runs, as one on a busy machine may
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import resumable

OPTIONS = set(sys.argv[1:])
SAMPLES, BATCH, EPOCHS = 24, 4, 2

torch.manual_seed(0)
torch.set_num_threads(1)
loader = resumable.wrap(DataLoader(TensorDataset(torch.arange(24.0)[:, None] / 24), BATCH, shuffle=True), seed=1)
model = torch.nn.Linear(1, 1)
if "--infinite" in OPTIONS:
    model.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
last, best = resumable.CheckpointStore("last", keep=3), resumable.CheckpointStore("best", keep=3)
step = 0

if (saved := last.latest()) is not None:
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scheduler.load_state_dict(saved["scheduler"])
    loader.load_state_dict(saved["loader"])
    step = saved["step"]


def save() -> None:
    """Write a checkpoint of everything, the best one first."""
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    if "--two-stores" in OPTIONS:
        best.save(step, {"model": model.state_dict()})
    last.save(step, {**content, "loader": loader.state_dict(), "step": step})


is_due, saved_at = step % 3 == 0, time.monotonic()
for epoch in loader.epochs(EPOCHS):
    for (inputs,) in epoch:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        step += 1
        is_due = step % 3 == 0
        if "--clock" in OPTIONS:
            time.sleep(random.SystemRandom().uniform(0.0, 0.04))
            is_due = step % 6 == 0 or time.monotonic() - saved_at > 0.05
        if is_due and ("--fewer" not in OPTIONS or "baseline" in Path.cwd().parts or step < 9):
            save()
            saved_at = time.monotonic()
