"""Augmentations of libraries that keep generators of their own, resumed at every step in new loaders."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import resumable

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # else it asks for its newest version when it is imported

if TYPE_CHECKING:
    from collections.abc import Callable

EPOCHS = 2


def albumentations(seed: int | None = None) -> Callable[[Any], Any]:
    library: Any = import_module("albumentations")  # both take seconds

    blur = library.OneOf([library.Rotate(), library.Blur()], p=0.7)
    steps = [library.HorizontalFlip(), library.RandomCrop(6, 6), library.GaussNoise(p=0.5), blur]
    compose = library.Compose(steps, seed=seed)
    return lambda image: compose(image=image)["image"]


def monai() -> Callable[[Any], Any]:
    library: Any = import_module("monai.transforms")

    either = library.OneOf([library.RandZoom(prob=0.9), library.RandAdjustContrast(prob=0.9)])
    compose = library.Compose([library.RandFlip(prob=0.5), library.RandGaussianNoise(prob=0.8), either])
    return lambda image: np.asarray(compose(image[..., 0][None].astype(np.float32)))


class Images(Dataset[Any]):
    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> Any:
        image = np.random.default_rng(index).integers(0, 255, (8, 8, 3), np.uint8)
        return torch.as_tensor(np.ascontiguousarray(self.transform(image)))


def run(make: Callable[[], Any], workers: int, taken: int = 0, state: Any = None) -> tuple[list[bytes], list[Any]]:
    loader = resumable.wrap(DataLoader(Images(make()), 4, shuffle=True, num_workers=workers), seed=5)
    if taken:
        loader.load_state_dict(state)
    got, states = [], [loader.state_dict()]
    for epoch in loader.epochs(EPOCHS):
        for batch in epoch:
            got.append(batch.numpy().tobytes())
            states.append(loader.state_dict())
    return got, states


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [albumentations, lambda: albumentations(seed=3), monai], ids=["albu", "seeded", "monai"]
)
def test_augmentations_go_on_exactly(make: Callable[[], Any]) -> None:
    golden, states = run(make, 0)
    assert len(set(golden)) == len(golden) == 6
    for taken in range(1, 6):
        assert run(make, 0, taken, states[taken])[0] == golden[taken:]
    assert run(make, 2)[0] == golden
    assert run(make, 2, 4, states[4])[0] == golden[4:]
