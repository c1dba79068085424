"""Buffers in which the ranks differ, such as the running means of a normalisation under DDP.

The Trainer saves those of rank 0, and each rank evaluates with its own. So the others write theirs beside them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import distributed

from resumable.integrations._buffers import Buffers

__all__ = ["load_buffers", "save_buffers"]


def save_buffers(model: Any, folder: str, rank: int, size: int) -> None:
    """Write this rank's buffers into a checkpoint, if they are not those of rank 0. All ranks have to call it."""
    if size == 1:
        return
    kept = Buffers(model).keep()
    digest, digests = kept.digest(), [""] * size
    distributed.all_gather_object(digests, digest)
    if digest != digests[0]:
        torch.save(dict(zip(*kept, strict=True)), _path(folder, rank))


def load_buffers(model: Any, folder: str, rank: int) -> None:
    """Give a rank the buffers that it wrote, if it did."""
    path = _path(folder, rank)
    if not path.is_file():
        return
    own = dict(model.named_buffers())
    with torch.no_grad():
        for name, tensor in torch.load(path, map_location="cpu", weights_only=True).items():
            if name in own and own[name].shape == tensor.shape:
                own[name].copy_(tensor)


def _path(folder: str, rank: int) -> Path:
    return Path(folder, f"resumable_buffers_{rank}.pt")
