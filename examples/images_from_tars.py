"""Digits from WebDataset shards, trained on, stopped and resumed; run it by `python examples/images_from_tars.py`."""

from __future__ import annotations

import logging
from copy import deepcopy
from tempfile import TemporaryDirectory
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader
from webdataset import TarWriter

import resumable


def write(folder: str) -> str:
    """Write the images as PNG, each with its label as JSON, into nine shards; return the pattern that names them."""
    for shard in range(9):
        with TarWriter(f"{folder}/digits-{shard:03}.tar") as tar:
            for number, (image, label) in enumerate(zip(*load_digits(return_X_y=True), strict=True)):
                if number % 9 == shard:
                    pixels = (image.reshape(8, 8) * 15).astype("uint8")
                    tar.write({"__key__": f"{number:05}", "png": pixels, "json": {"label": int(label)}})
    return f"{folder}/digits-{{000..008}}.tar"


def noisy(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """Return an image with some noise, which belongs to the sample and not to the worker, and its label."""
    return torch.from_numpy(sample["png"]).flatten() / 255 + 0.1 * torch.randn(64), sample["json"]["label"]


def train(shards: str, saved: dict[str, Any], steps: int = 150) -> dict[str, torch.Tensor]:
    """Train up to a number of steps, from the checkpoint if there is one, and save after each."""
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 10)
    tars: Any = resumable.Tars(shards, decode={"png": resumable.sources.image("L")}, transform=noisy)
    loader = resumable.wrap(DataLoader(tars, batch_size=32, num_workers=2), shuffle="blocks", seed=0)
    if saved:
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, labels in loader.steps(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()
        saved.update(model=deepcopy(model.state_dict()), loader=loader.state_dict())
    return dict(model.state_dict())


if __name__ == "__main__":
    logging.getLogger("resumable").setLevel("ERROR")  # the same stream is read twice on purpose, to compare
    with TemporaryDirectory() as folder:
        shards, checkpoint = write(folder), dict[str, Any]()
        train(shards, checkpoint, steps=97)
        whole, resumed = train(shards, {}), train(shards, checkpoint)
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items()), "the weights differ"
    print("stopped at step 97 and resumed: the weights are equal, bit for bit")
