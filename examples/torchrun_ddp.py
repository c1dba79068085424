"""Two ranks of torchrun train with DDP, one is killed, and both resume there: python examples/torchrun_ddp.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import resumable
from resumable.distributed import fail_together

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]


def train() -> None:
    """Train an epoch, from the checkpoint that rank 0 finds, and die once."""
    dataset = TensorDataset(torch.arange(48.0)[:, None])
    loader = resumable.wrap(DataLoader(dataset, batch_size=4, shuffle=True), seed=0)
    model = torch.nn.Linear(1, 1)
    store = resumable.CheckpointStore("checkpoints", keep=2)
    found = [store.latest_step() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)  # one rank searches, so all resume from the same checkpoint
    if found[0] is not None:
        saved = store.load(found[0])
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
    ddp = DistributedDataParallel(model)
    for (batch,) in loader.steps(6):
        step = loader.global_step
        ddp(batch / 48).sum().backward()
        with Path(f"rank{dist.get_rank()}.txt").open("a", encoding="utf-8") as lines:
            print(step, *map(int, batch), file=lines)
        if dist.get_rank() == 0:
            store.save(step, {"model": model.state_dict(), "loader": loader.state_dict()})
        if found[0] is None and step == 3 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


if len(sys.argv) > 1:
    dist.init_process_group("gloo")
    with fail_together():
        train()
    dist.destroy_process_group()
else:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        subprocess.run([*TORCHRUN, __file__, "train"], cwd=folder, env=environment, check=True, capture_output=True)  # noqa: S603  # this script
        lines = [line.split() for rank in "01" for line in Path(folder, f"rank{rank}.txt").read_text().splitlines()]
    print("The samples of each step:", *sorted({int(step) for step, *_ in lines}))
    assert len({tuple(line) for line in lines}) == 12  # repeated steps are the same
    assert sorted({int(sample) for _, *samples in lines for sample in samples}) == list(range(48))
