"""resumable continues a job of torchdata's StatefulDataLoader with the same batches: python examples/adopt_job.py."""

from __future__ import annotations

from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler

import resumable

SAMPLES: Any = range(20)


def make(seed: int) -> StatefulDataLoader[Any]:
    """Create the job's loader."""
    sampler = RandomSampler(SAMPLES, generator=torch.Generator().manual_seed(seed))
    return StatefulDataLoader(SAMPLES, batch_size=4, sampler=sampler)


def old_program() -> tuple[dict[str, Any], list[list[int]]]:
    """Train for three epochs; return a state of the second one, and the batches after it."""
    loader = make(7)
    saved: dict[str, Any] = {}
    after = []
    for epoch in range(3):
        for step, batch in enumerate(loader):
            if saved:
                after.append(batch.tolist())
            if (epoch, step) == (1, 1):
                saved = loader.state_dict()
    return saved, after


if __name__ == "__main__":
    state, expected = old_program()
    try:
        resumable.adopt(resumable.wrap(make(0), order="torch"), state)
    except resumable.errors.StateMismatchError as refused:
        print(f"With a different seed, this raises:\n{refused}\n")

    adopted = resumable.wrap(make(7), order="torch")
    print(resumable.adopt(adopted, state, batches=2))
    rest = [batch.tolist() for epoch in adopted.epochs(3) for batch in epoch]
    print("\nThe rest of the job is the same:", rest == expected)
