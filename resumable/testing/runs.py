"""What a run is compared by: the epoch and a fingerprint of each batch, and what the trainer's generators give."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable.loader import Loader

__all__ = ["Run", "digest", "draw_from_generators", "rest_of_run", "samples_of", "seed_generators"]

Run = list[tuple[int, str]]


def digest(batch: Any) -> str:
    """Fingerprint a batch by content: arrays and tensors by bytes, containers by their parts, the rest by `repr`."""
    state = hashlib.blake2b(digest_size=8)
    for part in _parts(batch):
        state.update(part)
    return state.hexdigest()


def rest_of_run(loader: Loader, epochs: int) -> Run:
    """Run a loader to its end, and return the epoch and the digest of every batch."""
    return [(epoch.number, digest(batch)) for epoch in loader.epochs(epochs) for batch in epoch]


def samples_of(batch: Any) -> list[Any]:
    """Take a batch apart: along the first axis, where it is made of arrays or tensors."""
    if isinstance(batch, dict):
        return list(zip(*batch.values(), strict=True))
    if isinstance(batch, (list, tuple)) and all(hasattr(part, "shape") for part in batch):
        return list(zip(*batch, strict=True))
    return list(batch)


def _parts(batch: Any) -> Iterator[bytes]:
    if hasattr(batch, "detach"):  # a tensor, without importing torch
        batch = batch.detach().cpu().numpy()
    if isinstance(batch, np.ndarray):
        yield f"{batch.dtype.str}{batch.shape}".encode()
        yield batch.tobytes()
    elif isinstance(batch, dict):
        for key, value in batch.items():
            yield repr(key).encode()
            yield from _parts(value)
    elif isinstance(batch, (list, tuple)):
        yield f"{type(batch).__name__}{len(batch)}".encode()
        for value in batch:
            yield from _parts(value)
    else:
        yield repr(batch).encode()


def seed_generators() -> None:
    """Seed the global generators."""
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002  # the global one is meant
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed((1 << 40) + 7)  # no seed for loaders that are given none


def draw_from_generators() -> list[float]:
    """Draw from each global generator; an odd number of normal deviates, as they come in pairs."""
    drawn = [random.random(), float(np.random.rand()), float(np.random.randn())]  # noqa: NPY002  # the global one
    return [*drawn, sys.modules["torch"].rand(()).item()] if "torch" in sys.modules else drawn
