"""A training by Accelerate alone, as its documentation writes it, or with `prepare`; saved once, or resumed from there.

Run as a script it is a server, as `run_server.py` says.
"""

from __future__ import annotations

import os
import random
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from run_server import Log, serve
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import resumable
from resumable.integrations.accelerate import prepare

if TYPE_CHECKING:
    from collections.abc import Iterator

SAMPLES, BATCH, EPOCHS = 20, 2, 3


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is run.

    Args:
        folder: of the checkpoint, and of what the ranks write down.
        save_at: save after so many micro-batches of the run, and go on.
        resume: from that checkpoint, which is in this folder.
        prepared: the loader by `prepare`; without it, Accelerate is alone.
        world: number of ranks.
        accumulate: micro-batches per optimizer step.
        workers: of the DataLoader.
        shuffle: the samples of each epoch.
        augment: samples draw random numbers.
        dropout: the model does.
        stream: an `IterableDataset` in place of a map-style one.
        stateful: `use_stateful_dataloader=True`.
        seedable: `use_seedable_sampler=True`.
        set_epoch: the loop calls `set_epoch`, which that needs after a resume.
        port: for the ranks to find each other.
    """

    folder: str
    save_at: int = 0
    resume: str = ""
    prepared: bool = False
    world: int = 1
    accumulate: int = 1
    workers: int = 0
    shuffle: bool = False
    augment: bool = False
    dropout: bool = False
    stream: bool = False
    stateful: bool = False
    seedable: bool = False
    set_epoch: bool = False
    port: int = 0


@dataclass
class Samples(Dataset[torch.Tensor]):
    """Numbers, and beside each of them what was drawn for it."""

    augment: bool

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, torch.rand(()).item() + random.random() if self.augment else 0.5])


@dataclass
class Stream(IterableDataset[torch.Tensor]):
    augment: bool

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from map(Samples(self.augment).__getitem__, range(SAMPLES))


def train(run: Run, rank: int) -> None:
    """Train as one of the ranks."""
    if not run.prepared:
        warnings.simplefilter("default")
    log = Log(Path(run.folder, f"log-{rank}"))
    config = DataLoaderConfiguration(use_stateful_dataloader=run.stateful, use_seedable_sampler=run.seedable)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=run.accumulate, dataloader_config=config)
    set_seed(0)
    net = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5 * run.dropout), nn.Linear(8, 1))
    dataset: Any = (Stream if run.stream else Samples)(run.augment)
    data: Any = DataLoader(dataset, BATCH, shuffle=run.shuffle and not run.stream, num_workers=run.workers)
    if run.prepared:
        shared: dict[str, Any] = {"shard": True} if run.stream and run.world > 1 else {}
        data = prepare(accelerator, resumable.wrap(data, seed=0, **shared))
    else:
        data = accelerator.prepare(data)
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1, momentum=0.9))
    checkpoint = Path(run.resume or run.folder, "checkpoint")
    if run.resume:
        accelerator.load_state(str(checkpoint))

    def step(number: int, epoch: int, batch: torch.Tensor) -> None:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch / SAMPLES).sub(1).pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()
        log.write("train", number, epoch, batch[:, 0].tolist(), batch[:, 1].tolist(), accelerator.sync_gradients)
        if number == run.save_at and not run.resume:
            accelerator.save_state(str(checkpoint))

    loop = with_ours if run.prepared else alone
    loop(run, accelerator, data, step)
    log.write("end", [one.tolist() for one in net.parameters()])


def with_ours(_: Run, __: Accelerator, data: Any, step: Any) -> None:
    done = data.global_step
    for epoch in data.epochs(EPOCHS):
        for batch in epoch:
            done += 1
            step(done, epoch.number, batch)


def alone(run: Run, accelerator: Accelerator, data: Any, step: Any) -> None:
    """Loop as Accelerate's guide to checkpoints does: skip in the first epoch, where the loader has no state itself."""
    length = SAMPLES // (BATCH * run.world)
    done = run.save_at if run.resume else 0
    first, skipped = divmod(done, length)
    for epoch in range(first, EPOCHS):
        loader = data
        if epoch == first and skipped and not run.stateful:
            loader = accelerator.skip_first_batches(data, skipped)
        if run.set_epoch:
            data.set_epoch(epoch)
            loader.set_epoch(epoch)
        for batch in loader:
            done += 1
            step(done, epoch, batch)


if __name__ == "__main__":
    torch.optim.SGD(nn.Linear(1, 1).parameters())  # which imports a thousand modules, once for all runs
    serve(Run, train, lambda run: run.world)
