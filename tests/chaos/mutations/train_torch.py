"""A training loop of torch with workers, dropout, momentum and a CheckpointStore; of any number of ranks."""

from __future__ import annotations

import os
import random
from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

import numpy as np
import planted
import torch
from torch import distributed
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import resumable

if TYPE_CHECKING:
    from collections.abc import Iterator

parser = ArgumentParser()
parser.add_argument("--bug")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--stream", action="store_true", help="of an IterableDataset")
given = parser.parse_args()
planted.plant(given.bug)

EPOCHS, SAMPLES, BATCH, EVERY = 2, 20, 4, 3


class Noise(Dataset[torch.Tensor]):
    """Samples with augmentation that draws from torch's generator."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index / SAMPLES]) + 0.1 * torch.rand(1)


class Stream(IterableDataset[torch.Tensor]):
    """The same samples, which the workers divide."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        first, by = (0, 1) if worker is None else (worker.id, worker.num_workers)
        yield from (Noise()[index] for index in range(first, SAMPLES, by))


ranks = "RANK" in os.environ
if ranks:
    distributed.init_process_group("gloo")
leads = not ranks or distributed.get_rank() == 0
per_rank = BATCH // distributed.get_world_size() if ranks else BATCH

random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)
source: Any = Stream() if given.stream else Noise()
loader = resumable.wrap(
    DataLoader(source, batch_size=per_rank, shuffle=None if given.stream else True, num_workers=given.workers), seed=1
)
model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(0.0 if ranks else 0.5), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
store = resumable.CheckpointStore("checkpoints", keep=3)
step = 0

if (saved := store.latest()) is not None:
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict(saved["loader"])
    resumable.rng.load_state_dict(saved["rng"])
    step = saved["step"]


def save() -> None:
    """Write a checkpoint of everything."""
    content = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loader": loader.state_dict(),
        "rng": resumable.rng.state_dict(),
        "step": step,
    }
    store.save(step, content)


for epoch in loader.epochs(EPOCHS):
    for batch in epoch:
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        for parameter in model.parameters() if ranks else ():
            distributed.all_reduce(parameter.grad)
        optimizer.step()
        step += 1
        if step % EVERY == 0 and leads:
            save()
if ranks:
    distributed.destroy_process_group()
