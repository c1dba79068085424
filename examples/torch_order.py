"""The batches of PyTorch's own loop, on two ranks, killed and resumed on one: python examples/torch_order.py."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import resumable

SAMPLES = TensorDataset(torch.arange(24))


def make(rank: int, ranks: int) -> DataLoader[Any]:
    """Create the loader of a rank, as in any PyTorch script."""
    sampler: DistributedSampler[Any] = DistributedSampler(SAMPLES, ranks, rank, seed=42)
    return DataLoader(SAMPLES, batch_size=6 // ranks, sampler=sampler)


def torchs_own(rank: int, ranks: int, epochs: int) -> list[list[int]]:
    """Return the batches of PyTorch's own loop."""
    loader, batches = make(rank, ranks), []
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]  # a DistributedSampler's
        batches += [batch.tolist() for (batch,) in loader]
    return batches


def resumed(state: dict[str, Any], epochs: int) -> list[list[int]]:
    """Return the rest, on a single rank."""
    loader = resumable.wrap(make(0, 1), order="torch")
    loader.load_state_dict(state)
    return [batch.tolist() for epoch in loader.epochs(epochs) for (batch,) in epoch]


if __name__ == "__main__":
    expected = [torchs_own(rank, 2, 2) for rank in range(2)]
    loaders = [resumable.wrap(make(rank, 2), order="torch") for rank in range(2)]
    got: list[list[list[int]]] = [[], []]
    for _ in range(5):  # then the run is killed, in its second epoch
        for rank, loader in enumerate(loaders):
            got[rank].append(next(iter(loader))[0].tolist())
    print("Two ranks, the same batches as PyTorch's own:", got == [one[:5] for one in expected])

    for step, batch in enumerate(resumed(loaders[0].state_dict(), 2), start=5):
        parts = [one[step] for one in expected]
        assert batch[0::2] == parts[0]
        assert batch[1::2] == parts[1]
        print(f"One rank, step {step}: {batch}, distributed to two ranks: {parts}")
