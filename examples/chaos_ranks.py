"""Train two ranks of torchrun with DDP, and kill one of them: python examples/chaos_ranks.py.

The same on the command line, with a kill of each rank, of torchrun and of all processes:
resumable chaos run --points 4 -- torchrun --standalone --nproc-per-node=2 examples/chaos_ranks.py train
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import resumable

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2"]


def train() -> None:
    """Train two epochs, from the checkpoint that rank 0 finds."""
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(48, 4), torch.randn(48, 1))
    loader = resumable.wrap(DataLoader(dataset, batch_size=8 // size, shuffle=True), seed=0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": loader}
    store = resumable.CheckpointStore("checkpoints", keep=2)
    found = [store.latest_step() if rank == 0 else None]
    dist.broadcast_object_list(found)  # one rank searches, so all resume from the same checkpoint
    for name, state in (store.load(found[0]) if found[0] is not None else {}).items():
        parts[name].load_state_dict(state)
    ddp = DistributedDataParallel(model)
    for epoch in loader.epochs(2):
        for inputs, targets in epoch:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(ddp(inputs), targets).backward()  # type: ignore[no-untyped-call]  # torch's
            optimizer.step()
            if rank == 0 and loader.global_step % 3 == 0:
                store.save(loader.global_step, {name: part.state_dict() for name, part in parts.items()})
    resumable.chaos.record_weights(model)
    dist.destroy_process_group()


if "train" in sys.argv:
    train()
else:
    with tempfile.TemporaryDirectory() as directory:
        words = [*TORCHRUN, str(Path(__file__).absolute()), "train"]
        report = resumable.chaos.run(words, points=1, directory=directory, patience=600.0)
        print(report.timeline(), report, sep="\n\n")
    assert report.ok
