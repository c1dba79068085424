"""Train on labelled and unlabelled samples alternately: independent streams with one seed."""

from __future__ import annotations

import logging

import torch
from torch.utils.data import DataLoader, Dataset

import resumable

logging.getLogger("resumable").setLevel("ERROR")  # the same stream is read twice on purpose, to compare


class Noisy(Dataset[torch.Tensor]):
    """Numbers that are augmented with noise."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(())


def make() -> dict[str, resumable.Loader[torch.Tensor]]:
    """Return the two loaders."""
    torch.manual_seed(7)  # the seed of both, because wrap gets none
    names = ("labelled", "unlabelled")
    return {name: resumable.wrap(DataLoader(Noisy(), batch_size=8, shuffle=True), name=name) for name in names}


def train(loaders: dict[str, resumable.Loader[torch.Tensor]], steps: int) -> list[torch.Tensor]:
    """Return the batches of both in pairs, up to a number of steps over the whole run."""
    pairs = zip(*(loader.steps(steps) for loader in loaders.values()), strict=True)
    return [torch.stack(pair) for pair in pairs]


if __name__ == "__main__":
    whole = train(make(), steps=20)
    assert not any(torch.equal(left.frac(), right.frac()) for left, right in whole), "the augmentation is the same"

    stopped = make()
    first = train(stopped, steps=11)
    states = {name: loader.state_dict() for name, loader in stopped.items()}

    resumed = make()
    for name, loader in resumed.items():
        loader.load_state_dict(states[name])
    assert torch.equal(torch.stack(first + train(resumed, steps=20)), torch.stack(whole))
    print("two streams with seed 7 resumed at step 11 of 20, each with its own order")
