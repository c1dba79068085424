"""A worker of Ray Train is killed twice, and the run resumes at the exact batch: .venv/ray/bin/python ray_train.py."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer, prepare_model
from torch.utils.data import DataLoader, TensorDataset

import resumable


def loop(config: dict[str, Any]) -> None:
    """Train on one worker; worker 1 is killed at some steps, once each."""
    torch.manual_seed(0)
    data = TensorDataset(torch.arange(24.0)[:, None] / 24, torch.arange(24))
    loader = resumable.wrap(DataLoader(data, batch_size=2, shuffle=True), seed=0)
    model, rank, notes = torch.nn.Linear(1, 1), train.get_context().get_world_rank(), Path(config["notes"])
    parts: dict[str, Any] = {"loader": loader, "model": model}
    if (checkpoint := train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            for name, state in torch.load(f"{folder}/state.pt").items():
                parts[name].load_state_dict(state)
    ddp, optimizer = prepare_model(model), torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, samples in loader.steps(12):
        optimizer.zero_grad()
        (ddp(inputs) - inputs).square().mean().backward()
        optimizer.step()
        step = loader.global_step
        if rank == 1 and step in config["kills"] and not (notes / f"killed-{step}").exists():
            (notes / f"killed-{step}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with (notes / f"rank{rank}").open("a", encoding="utf-8") as file:
            file.write(f"step {step}: samples {samples.tolist()}, weight {model.weight.item()}\n")
        with tempfile.TemporaryDirectory() as folder:
            torch.save({name: part.state_dict() for name, part in parts.items()}, f"{folder}/state.pt")
            train.report({"step": step}, checkpoint=train.Checkpoint.from_directory(folder) if rank == 0 else None)


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
with tempfile.TemporaryDirectory() as root:
    (Path(root) / "notes").mkdir()
    TorchTrainer(
        loop,
        train_loop_config={"notes": f"{root}/notes", "kills": [5, 9]},
        scaling_config=train.ScalingConfig(num_workers=2),
        run_config=train.RunConfig(storage_path=root, failure_config=train.FailureConfig(max_failures=4)),
    ).fit()
    for path in Path(root).glob("notes/rank*"):
        print(path.read_text(encoding="utf-8"))
