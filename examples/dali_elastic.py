"""DALI on two ranks, then on one, changed in the middle of an epoch: python examples/dali_elastic.py."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import torch
from nvidia.dali import fn, types
from PIL import Image
from sklearn.datasets import load_digits

import resumable
from resumable.backends import dali


def augment(raw: Any, label: Any, u: Any) -> tuple[Any, Any]:
    """Crop and flip an image with the random numbers of its sample."""
    image = fn.crop(fn.decoders.image(raw), crop=(24, 24), crop_pos_x=u[0], crop_pos_y=u[1])
    return fn.flip(image, horizontal=fn.cast(u[2] < 0.5, dtype=types.INT32)), label


def start(folder: str, ranks: int, state: dict[str, Any] | None = None) -> list[resumable.Loader]:
    """Create the loaders of all ranks, from a state if there is one."""
    source = dali.source(folder, pipeline=augment, uniforms=3)
    worlds = [resumable.World(rank, ranks) for rank in range(ranks)]
    loaders = [resumable.wrap(source, batch_size=12 // ranks, shuffle=True, tail="drop", world=w) for w in worlds]
    for loader in loaders if state else ():
        loader.load_state_dict(state or {})
    return loaders


def step(loaders: list[resumable.Loader]) -> torch.Tensor:
    """Take the next batch of every rank; return the pixels of the global batch."""
    parts = [next(iter(loader)) for loader in loaders]
    print(f"  {len(parts)} ranks: {[part['label'].flatten().tolist() for part in parts]}")
    return torch.cat([part["data"] for part in parts])


logging.getLogger("resumable").setLevel("ERROR")  # the same stream is read twice on purpose, to compare
with tempfile.TemporaryDirectory() as folder:
    for number, (digit, label) in enumerate(zip(*load_digits(return_X_y=True), strict=True)):
        Path(folder, str(label)).mkdir(exist_ok=True)
        Image.fromarray(digit.reshape(8, 8).astype("uint8") * 15).resize((32, 32)).save(
            f"{folder}/{label}/{number}.jpg"
        )

    print("One rank, baseline:")
    alone = start(folder, 1)
    baseline = [step(alone) for _ in range(4)]
    print("2 ranks, then 1:")
    two = start(folder, 2)
    resized = [step(two) for _ in range(2)]
    one = start(folder, 1, two[0].state_dict())
    resized += [step(one) for _ in range(2)]
    print("The same pixels in every batch:", all(map(torch.equal, baseline, resized)))
