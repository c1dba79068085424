"""Writes a folder of torch.distributed.checkpoint by some ranks: `python shards_run.py FOLDER RANKS`."""

from __future__ import annotations

import sys

import torch
from torch import distributed
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.utils.data import DataLoader, TensorDataset

import resumable


def write(rank: int, ranks: int, folder: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder}.group", rank=rank, world_size=ranks)
    data = TensorDataset(torch.arange(22))
    loader = resumable.wrap(DataLoader(data, 4 // ranks, shuffle=True), seed=3, name="train")
    for _ in loader.steps(9):
        pass
    weight = distribute_tensor(torch.arange(12.0).reshape(4, 3), init_device_mesh("cpu", (ranks,)), [Shard(0)])
    content = {"model": {"weight": weight, "bias": torch.ones(2)}, "loader": loader.state_dict(), "step": 9}
    checkpoint.async_save(content, checkpoint_id=folder).result()  # type: ignore[union-attr]
    distributed.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.start_processes(write, (int(sys.argv[2]), sys.argv[1]), int(sys.argv[2]), start_method="fork")  # type: ignore[no-untyped-call]
