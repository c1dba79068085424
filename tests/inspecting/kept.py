"""Checkpoints of every kind, made by the libraries themselves, of one training that stands at step 3 of epoch 1."""

from __future__ import annotations

import json
import random
import struct
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed import checkpoint as dcp
from torch.utils.data import DataLoader, TensorDataset

import resumable
from resumable.checkpoint import CheckpointStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
        dcp.save(dict(content), checkpoint_id=folder / "dcp", no_dist=True)  # type: ignore[attr-defined]  # as torch says it
    return folder / "dcp"


FLAT: dict[str, Callable[[Path, dict[str, Any]], Path]] = {
    "CheckpointStore": of_store,
    "step of a CheckpointStore": of_step,
    "file of torch.save": of_torch,
    "file of torch.save, of its older format": of_older_torch,
    "torch.distributed.checkpoint": of_distributed,
}


def of_accelerate(folder: Path, content: dict[str, Any]) -> Path:
    """The layout of `Accelerator.save_state`, each file as that writes it."""
    inside = folder / "accelerate"
    inside.mkdir()
    torch.save(content["optimizer"], inside / "optimizer.bin")
    torch.save(content["data"], inside / "custom_checkpoint_0.pkl")
    torch.save({"_snapshot": {"inner": content["data"]}}, inside / "dl_state_dict.bin")
    states = {"random_state": random.getstate(), "numpy_random_seed": np.random.get_state()}
    torch.save({**states, "torch_manual_seed": torch.get_rng_state()}, inside / "random_states_0.pkl")
    (inside / "model.safetensors").write_bytes(safetensors(content["model"]))
    return inside


def of_trainer(folder: Path, content: dict[str, Any]) -> Path:
    """The layout of Hugging Face's Trainer, each file as that writes it."""
    inside = folder / "checkpoint-500"
    inside.mkdir()
    torch.save(content["optimizer"], inside / "optimizer.pt")
    torch.save({"random_states": Namespace()}, inside / "training_args.bin")
    (inside / "trainer_state.json").write_text(json.dumps({"global_step": 500, "resumable": content["data"]}))
    (inside / "README.md").write_text("# A model\n")
    (inside / "model.safetensors").write_bytes(safetensors(content["model"]))
    return inside


class Namespace:
    """What no reader may load."""


def safetensors(tensors: dict[str, torch.Tensor]) -> bytes:
    """The bytes of a file of safetensors, as its format says."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        raw = tensor.numpy().tobytes()
        entry = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        header[name], data = entry, data + raw  # type: ignore[assignment]
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data
