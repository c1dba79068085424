"""FSDP2 in several processes, one of which is killed: what each rank trained on, and the weights at the end."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import resumable
from resumable.checkpoint import mark_complete, newest_complete

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["STEPS", "DiesWithin", "die", "note", "train"]

STEPS, GLOBAL_BATCH = 10, 8


class App:
    """Model and optimizer as DCP wants them."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def train(rank: int, size: int, root: Path, kill: tuple[int, int, str] | None = None) -> dict[str, torch.Tensor]:
    """Train from the newest complete checkpoint to the end, and save after every second step.

    Args:
        rank: of this process.
        size: number of processes.
        root: of the checkpoints and of the records.
        kill: rank, step and moment of a SIGKILL; none for a run that ends.
    """
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (size,))
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = TensorDataset(torch.arange(40.0)[:, None].repeat(1, 4) / 40, torch.arange(40))
    loader = resumable.wrap(DataLoader(data, batch_size=GLOBAL_BATCH // size, shuffle=True), seed=0)
    content = {"app": App(model, optimizer), "loader": loader.dcp()}
    if (folder := newest_complete(root)) is not None:
        dcp.load(content, checkpoint_id=folder)
    for inputs, targets in loader.steps(STEPS):
        optimizer.zero_grad()
        (model(inputs) - targets[:, None] / 40).square().mean().backward()
        optimizer.step()
        step = loader.global_step
        note(root, rank, step, targets.tolist())
        if step % 2 == 0:
            die(kill, rank, step, "before")
            with DiesWithin(kill, rank, step):
                dcp.save(content, checkpoint_id=root / str(step))
            die(kill, rank, step, "saved")
            mark_complete(root / str(step), step)
            die(kill, rank, step, "marked")
    return {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}


def note(root: Path, rank: int, step: int, samples: list[int]) -> None:
    with (root / f"rank{rank}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps([step, samples]) + "\n")


def die(kill: tuple[int, int, str] | None, *here: object) -> None:
    if kill == here:
        os.kill(os.getpid(), signal.SIGKILL)


class DiesWithin:
    """Kills this rank where DCP makes a file of a save durable: first the data, and on rank 0 the metadata after it."""

    def __init__(self, kill: tuple[int, int, str] | None, rank: int, step: int) -> None:
        moments = {(rank, step, "data"): 1, (rank, step, "metadata"): 2}
        self._left = 0 if kill is None else moments.get(kill, 0)
        self._fsync = os.fsync

    def __enter__(self) -> None:
        os.fsync = self._sync  # type: ignore[assignment]  # named otherwise

    def __exit__(self, *error: object) -> None:
        os.fsync = self._fsync

    def _sync(self, file: Any) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._fsync(file)
