"""In the shape of PyTorch's tutorial on torchrun: a Trainer class, a snapshot, DistributedDataParallel.

Made resumable as docs/clusters/multi-gpu.md says.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import resumable


class Trainer:
    def __init__(self, model: nn.Module, train_data: Any, optimizer: torch.optim.Optimizer, snapshot_path: str) -> None:
        self.global_rank, self.train_data, self.optimizer = int(os.environ["RANK"]), train_data, optimizer
        self.module = model
        self.store = resumable.CheckpointStore(snapshot_path, keep=2, shared=True)
        snapshot = self.store.latest()
        if snapshot is not None:
            self._load_snapshot(snapshot)
        self.model = DDP(model)

    def _load_snapshot(self, snapshot: dict[str, Any]) -> None:
        self.module.load_state_dict(snapshot["MODEL_STATE"])
        self.optimizer.load_state_dict(snapshot["OPTIMIZER_STATE"])
        self.train_data.load_state_dict(snapshot["LOADER_STATE"])
        resumable.rng.load_state_dict(self.store.load_part(self.store.latest_step()))
        print(f"[rank{self.global_rank}] Resuming training from snapshot at step {self.train_data.global_step}")

    def _save_snapshot(self) -> None:
        snapshot = {
            "MODEL_STATE": self.module.state_dict(),
            "OPTIMIZER_STATE": self.optimizer.state_dict(),
            "LOADER_STATE": self.train_data.state_dict(),
        }
        self.store.save(self.train_data.global_step, snapshot, part=resumable.rng.state_dict())

    def _run_batch(self, source: torch.Tensor, targets: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        cross_entropy(self.model(source), targets).backward()
        self.optimizer.step()

    def train(self, max_epochs: int, save_every: int) -> None:
        for epoch in self.train_data.epochs(max_epochs):
            print(f"[rank{self.global_rank}] Epoch {epoch} | Steps: {len(epoch)}")
            for source, targets in epoch:
                self._run_batch(source, targets)
                if self.train_data.global_step % save_every == 0:
                    self._save_snapshot()
        if self.global_rank == 0:
            torch.save(self.module.state_dict(), "model.pt")


def main(save_every: int, total_epochs: int, batch_size: int, snapshot_path: str = "snapshots") -> None:
    init_process_group(backend="gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.Dropout(0.2), nn.Linear(32, 4))
    torch.manual_seed(int(os.environ["RANK"]))  # another dropout on each rank
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    arrays = np.load("data/points.npz")
    dataset = TensorDataset(torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"]))
    train_data = resumable.wrap(
        DataLoader(dataset, batch_size=batch_size, shuffle=False, sampler=DistributedSampler(dataset)), seed=0
    )
    Trainer(model, train_data, optimizer, snapshot_path).train(total_epochs, save_every)
    destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="simple distributed training job")
    parser.add_argument("total_epochs", type=int, help="Total epochs to train the model")
    parser.add_argument("save_every", type=int, help="How often to save a snapshot")
    parser.add_argument("--batch_size", default=4, type=int, help="Input batch size on each device")
    given = parser.parse_args()
    main(given.save_every, given.total_epochs, given.batch_size)
