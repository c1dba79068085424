"""Training on as many machines as torchrun finds. Each has an agent with one rank, which records its batches.

`python elastic_run.py FOLDER OPTIONS` is an agent: torchrun with these options, whose rank it forks from itself.
The file `may` in the folder holds the number of steps that ranks may take, so a test knows what comes next.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import resumable

if TYPE_CHECKING:
    from collections.abc import Callable

    Step = Callable[[torch.Tensor], torch.Tensor]

__all__ = ["GLOBAL_BATCH", "STEPS", "run", "unharmed"]

STEPS, GLOBAL_BATCH, SAVES = 18, 8, 3
PAUSE = 0.05  # seconds of a step, so that a kill hits any moment of one


class Noisy(Dataset[Any]):
    """Samples with a part that is drawn: 56 of them, so an epoch has 7 steps."""

    def __len__(self) -> int:
        return 56

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, index / 56 + torch.rand(())


class Training:
    """Model, optimizer and loader of one rank."""

    def __init__(self, size: int, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        source = DataLoader(Noisy(), batch_size=GLOBAL_BATCH // size, shuffle=True)
        self.loader = resumable.wrap(source, seed=0, **options)
        self.parts: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer, "loader": self.loader}

    def state(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load(self, saved: dict[str, Any]) -> None:
        for name, part in self.parts.items():
            part.load_state_dict(saved[name])

    def run(self, model: Step, before: Callable[..., None], after: Callable[[int], None]) -> None:
        """Train to the end; `before` is told of each batch, and `after` that a step is done."""
        for samples, inputs in self.loader.steps(STEPS):
            before(self.loader.global_step, samples.tolist(), inputs.tolist())
            self.optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs[:, None]), samples[:, None] / 56).backward()  # type: ignore[no-untyped-call]  # torch's
            self.optimizer.step()
            after(self.loader.global_step)


def unharmed() -> tuple[list[list[Any]], dict[str, torch.Tensor]]:
    """Return what one process alone trains on, step by step, and its weights at the end."""
    seen: list[list[Any]] = []
    with torch.random.fork_rng():
        training = Training(1, world=resumable.World(0, 1))
        training.run(training.model, lambda *line: seen.append(list(line)), lambda step: None)
    return seen, training.model.state_dict()


def train(folder: Path) -> None:
    """Train to the end, from the checkpoint that rank 0 finds."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    training = Training(size)
    store = resumable.CheckpointStore(folder / "checkpoints", shared=True, keep=2, timeout=30)
    if (saved := store.latest()) is not None:
        training.load(saved)
    start = [time.time_ns()]
    distributed.broadcast_object_list(start)  # agents count restarts by themselves, so these are not the same on all
    about = {"start": start[0], "rank": rank, "size": size, "done": training.loader.global_step}
    lines = (folder / f"rank-{os.getpid()}.jsonl").open("a", encoding="utf-8", buffering=1)
    lines.write(json.dumps({**about, "pid": os.getpid(), "agent": os.getppid()}) + "\n")

    def before(*line: Any) -> None:
        """Write a step down: its collective comes after that, so no rank does it without the lines of all."""
        while line[0] > int((folder / "may").read_text()):
            time.sleep(0.01)
        lines.write(json.dumps(line) + "\n")
        time.sleep(PAUSE)

    def after(step: int) -> None:
        if step % SAVES == 0:
            store.save(step, training.state())

    with lines:
        training.run(DistributedDataParallel(training.model), before, after)
    if rank == 0:
        torch.save(training.model.state_dict(), folder / "weights.pt")


def run(folder: str) -> None:
    """Be a rank: a fork of its agent, of whose death torch tells by a SIGINT; what torchrun starts gets none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    train(Path(folder))
    distributed.destroy_process_group()


def be_an_agent(folder: str, options: list[str]) -> None:
    """Do what torchrun does on a machine. The rank is a fork, so PyTorch is imported once per machine."""
    config, _, _ = config_from_args(parse_args([*options, "a function"]))  # type: ignore[no-untyped-call]  # torch's
    config.start_method = "fork"
    elastic_launch(config, run)(folder)


if __name__ == "__main__":
    be_an_agent(sys.argv[1], sys.argv[2:])
