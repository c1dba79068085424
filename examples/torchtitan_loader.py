"""torchtitan's checkpoint manager with a Loader, two ranks and then one: python examples/torchtitan_loader.py."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes
from torch.utils.data import DataLoader
from torchtitan.components.checkpointer import CheckpointManager

import resumable
from resumable.integrations.torchtitan import LoaderConfig

ROWS = [({"input": number}, number) for number in range(48)]  # as torchtitan's trainer expects: input, and labels


def make(world: resumable.World, *, local_batch_size: int, **_: Any) -> resumable.Loader[Any]:
    """Create the Loader, as torchtitan's trainer does."""
    source = DataLoader[Any](ROWS, batch_size=local_batch_size, shuffle=True)  # type: ignore[arg-type]  # a list
    return resumable.wrap(source, seed=0, world=world)


def train(rank: int, size: int, folder: str, until: int) -> None:
    """Do what torchtitan's `Trainer` does with its dataloader and its checkpoint manager, up to a step."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/group-{until}", rank=rank, world_size=size)
    config = LoaderConfig(make=make, epochs=2)
    dataloader = config.build(dp_world_size=size, dp_rank=rank, tokenizer=None, local_batch_size=8 // size)
    optimizer = torch.optim.SGD((model := torch.nn.Linear(1, 1)).parameters())
    manager = CheckpointManager.Config(enable=True, interval=1, keep_latest_k=0).build(
        dataloader=dataloader,
        model_parts=[model],
        optimizers=optimizer,
        states={},
        sd_adapter=None,
        base_folder=folder,
        lr_schedulers=torch.optim.lr_scheduler.ConstantLR(optimizer),
    )
    manager.load(step=-1)
    for _, labels in dataloader:
        step = dataloader.loader.global_step
        torch.save(labels, f"{folder}/step{step}-of-rank{rank}.pt")
        manager.save(step)
        if step == until:
            break
    manager.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        for ranks, last_step in ((2, 5), (1, 99)):
            start_processes(train, (ranks, root, last_step), nprocs=ranks, start_method="fork")  # type: ignore[no-untyped-call]  # torch's
        for step, (_, labels) in enumerate(make(resumable.World(0, 1), local_batch_size=8).steps(12), 1):
            parts = [torch.load(path) for path in sorted(Path(root).glob(f"step{step}-of-*"))]
            assert torch.equal(torch.cat(parts), labels)
    print("Five steps on two ranks, seven on one: the global batches of one rank in two epochs.")
