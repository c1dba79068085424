"""Checkpoints of every kind, made by the libraries themselves, of one training that stands at step 3 of epoch 1."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.distributed import checkpoint as dcp
from torch.utils.data import DataLoader, TensorDataset

import resumable
from resumable.checkpoint import CheckpointStore

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES, BATCH = 22, 4


def wrapped(**options: Any) -> resumable.Loader[Any]:
    data = TensorDataset(torch.arange(SAMPLES))
    return resumable.wrap(DataLoader(data, batch_size=BATCH, shuffle=True), **{"seed": 3, "name": "train", **options})


def trained(batches: int = 9, **options: Any) -> dict[str, Any]:
    """Weights, optimizer and loader after some batches; an epoch has 6 of them."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    loader = wrapped(**options)
    for _ in loader.steps(batches):
        optimizer.zero_grad()
        model(torch.rand(4, 3)).sum().backward()
        optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": loader.state_dict()}


def of_store(folder: Path, content: dict[str, Any]) -> Path:
    store = CheckpointStore(folder / "store")
    store.save(3, {"model": {}})
    store.save(9, content)
    return folder / "store"


def of_step(folder: Path, content: dict[str, Any]) -> Path:
    return of_store(folder, content) / "step-000000000009"


def of_torch(folder: Path, content: dict[str, Any]) -> Path:
    torch.save(content, folder / "checkpoint.pt")
    return folder / "checkpoint.pt"


def of_older_torch(folder: Path, content: dict[str, Any]) -> Path:
    torch.save(content, folder / "older.pt", _use_new_zipfile_serialization=False)
    return folder / "older.pt"


def of_distributed(folder: Path, content: dict[str, Any]) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process
        dcp.save(dict(content), checkpoint_id=folder / "dcp", no_dist=True)
    return folder / "dcp"


FLAT: dict[str, Callable[[Path, dict[str, Any]], Path]] = {
    "CheckpointStore": of_store,
    "step of a CheckpointStore": of_step,
    "file of torch.save": of_torch,
    "file of torch.save in its older format": of_older_torch,
    "torch.distributed.checkpoint": of_distributed,
}


def of_accelerate(folder: Path, safe: bool = True) -> Path:
    """What `Accelerator.save_state` writes, with a scheduler, a plain loader, ours, and an object of the user's."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))
    plain = DataLoader(TensorDataset(torch.arange(SAMPLES)), BATCH, shuffle=True)
    model = torch.nn.Linear(3, 2)
    adam = torch.optim.Adam(model.parameters())
    steps = torch.optim.lr_scheduler.StepLR(adam, 3)
    model, optimizer, scheduler, plain = accelerator.prepare(model, adam, steps, plain)
    loader = wrapped()
    accelerator.register_for_checkpointing(loader, Notes())
    next(iter(plain))
    for _ in loader.steps(9):
        optimizer.zero_grad()
        accelerator.backward(model(torch.rand(4, 3)).sum())
        optimizer.step()
        scheduler.step()
    return Path(accelerator.save_state(str(folder / "accelerate"), safe_serialization=safe))


class Notes:
    """An object of the user's, with a class and a function in its state."""

    def state_dict(self) -> dict[str, Any]:
        return {"class": Notes, "path": Path("data"), "notes": self}

    def load_state_dict(self, _: Any) -> None:
        raise NotImplementedError
