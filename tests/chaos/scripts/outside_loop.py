"""A loop that resumes from its own directory, and writes to three folders outside of it, as exports of real scripts do.

`--into FOLDER` has, from a real run: `store`, a CheckpointStore; `link`, a symbolic link to another one; `files`, what
`torch.save` wrote; and `log.txt`. With `--load`, it goes on from one of them instead, which is to be refused.
"""

from __future__ import annotations

import json
import os
import random
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

import resumable

parser = ArgumentParser()
parser.add_argument("--into", type=Path, required=True)
parser.add_argument("--load", choices=["store", "link", "files", "json"])
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--epochs", type=int, default=2)
given = parser.parse_args()
folder: Path = given.into

random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)
dataset = TensorDataset(torch.arange(24.0)[:, None] / 24)
loader = resumable.wrap(DataLoader(dataset, batch_size=4, shuffle=True, num_workers=given.workers), seed=1)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
own = resumable.CheckpointStore("checkpoints", keep=2)
stores = [resumable.CheckpointStore(folder / name, keep=2) for name in ("store", "link")]


def load() -> Any:
    """Return the checkpoint to go on from."""
    if given.load is None:
        return own.latest()
    if given.load == "files":
        newest = max((folder / "files").glob("*.pt"), key=lambda path: path.stat().st_mtime)
        return torch.load(newest)
    if given.load == "json":
        saved = json.loads((folder / "files" / "loader.json").read_text())
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": saved, "step": 0}
    return resumable.CheckpointStore(folder / given.load).latest()


step = 0
if (saved := load()) is not None:
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict(saved["loader"])
    step = saved["step"]


def save() -> None:
    """Write a checkpoint of everything, everywhere, and remove older ones."""
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
    content: dict[str, Any] = {**states, "step": step}
    for store in (own, *stores):
        store.save(step, content)
    torch.save(content, folder / "files" / f"step-{step}.pt")
    files = sorted((folder / "files").glob("step-*.pt"), key=lambda path: path.stat().st_mtime)
    for old in files[:-2]:
        old.unlink()
    os.replace(files[-1], folder / "files" / "newest.pt")  # noqa: PTH105  # as many scripts do


with (folder / "log.txt").open("a") as log:
    for epoch in loader.epochs(given.epochs):
        for (inputs,) in epoch:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            step += 1
            log.write(f"{step}\n")
            log.flush()
            if step % 3 == 0:
                save()
resumable.chaos.record_weights(model)
