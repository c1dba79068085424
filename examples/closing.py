"""A `with` block ends a loader's workers and keeps its position, so the next block continues there.

python examples/closing.py
"""

from __future__ import annotations

import multiprocessing
from contextlib import suppress

import torch
from torch.utils.data import DataLoader, TensorDataset

import resumable

data = TensorDataset(torch.arange(12))
workers = DataLoader(data, batch_size=3, num_workers=2, persistent_workers=True)


def say(when: str) -> None:
    """Print how many worker processes there are."""
    print(f"{when}: {len(multiprocessing.active_children())} workers")


if __name__ == "__main__":
    with suppress(MemoryError), resumable.wrap(workers) as loader:
        for (batch,) in loader:
            print("trained on", batch.tolist())
            if loader.cursor.step == 2:
                say("in the block")
                raise MemoryError
    say("after the block, which an exception ended")

    print("position in the state:", loader.state_dict()["cursor"])
    with loader:
        for (batch,) in loader:
            print("continued with", batch.tolist())
    say("at the end")
