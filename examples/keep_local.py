"""With half of the ranks, each keeps its batch size and gradients are accumulated: python examples/keep_local.py."""

from __future__ import annotations

import logging

import torch

import resumable

logging.getLogger("resumable").setLevel("ERROR")  # the same stream is read twice on purpose, to compare
SAMPLES = torch.linspace(-1, 1, 48)


def make(rank: int, ranks: int) -> resumable.Loader[torch.Tensor]:
    """Wrap the samples for one of the ranks."""
    world = resumable.World(rank, ranks)
    return resumable.wrap(SAMPLES, batch_size=4, shuffle=True, seed=0, world=world, on_change="keep_local")


def train(weight: torch.Tensor, loaders: list[resumable.Loader[torch.Tensor]], steps: int) -> torch.Tensor:
    """Take optimizer steps; the loaders represent the ranks of a process group."""
    for _ in range(steps):
        accumulation = loaders[0].accumulation
        if accumulation is None:
            raise SystemExit("a step of the first run is not a whole number of these steps")
        batches = [next(iter(loader)) for _ in range(accumulation) for loader in loaders]
        samples = torch.cat(batches)
        weight = weight - 0.1 * (weight * samples - 3 * samples).mul(samples).mean()
    return weight


if __name__ == "__main__":
    start = torch.zeros(())
    baseline = train(start, [make(rank, 4) for rank in range(4)], 3)

    four = [make(rank, 4) for rank in range(4)]
    weight, state = train(start, four, 1), four[0].state_dict()
    two = [make(rank, 2) for rank in range(2)]
    for loader in two:
        loader.load_state_dict(state)
    print(f"Two ranks take {two[0].global_batch_size} samples per step, and {two[0].accumulation} steps per update.")
    print("The same weight:", train(weight, two, 2).equal(baseline))
