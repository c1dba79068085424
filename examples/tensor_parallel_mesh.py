"""Four ranks, two per copy of the model, are killed and resume: python examples/tensor_parallel_mesh.py."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing import ProcessExitedException, start_processes
from torch.utils.data import DataLoader, TensorDataset

import resumable

STEPS = 12


def train(rank: int, folder: str, die_at: int) -> None:
    """Train as rank 0 to 3 of a mesh, from the latest checkpoint, and die at a step."""
    meet = f"file://{folder}/group-{die_at}"
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    dataset = TensorDataset(torch.arange(48.0))
    loader = resumable.wrap(DataLoader(dataset, batch_size=4, shuffle=True), seed=0, world=mesh["data"])
    store = resumable.CheckpointStore(f"{folder}/checkpoints", shared=True, keep=2)
    if (saved := store.latest()) is not None:  # the same step on all four
        loader.load_state_dict(saved)
    for (batch,) in loader.steps(STEPS):
        dist.all_reduce(batch.sum())  # in place of a forward and a backward pass on all ranks
        step = loader.global_step
        with Path(folder, f"rank{rank}.txt").open("a", encoding="utf-8") as lines:
            print(step, *map(int, batch), file=lines)
        store.save(step, loader.state_dict())
        if step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    logging.getLogger("torch.multiprocessing").setLevel("ERROR")  # it logs which ranks it ends after a dead one
    with tempfile.TemporaryDirectory() as root:
        for death in (4, 9, 0):
            with suppress(ProcessExitedException):
                start_processes(train, (root, death), nprocs=4, start_method="fork")  # type: ignore[no-untyped-call]  # torch's
        texts = [Path(root, f"rank{rank}.txt").read_text(encoding="utf-8") for rank in range(4)]
    ranks = [dict(line.split(" ", 1) for line in text.splitlines()) for text in texts]
    assert ranks[0] == ranks[1], "ranks with one copy of the model have read the same"
    assert ranks[2] == ranks[3]
    samples = [sample for rank in (0, 2) for step in range(1, 7) for sample in ranks[rank][str(step)].split()]
    assert sorted(map(int, samples)) == list(range(48))
    print(f"Killed twice, {STEPS} steps: ranks 0 and 1 read the same, 2 and 3 the rest, and each sample once an epoch.")
