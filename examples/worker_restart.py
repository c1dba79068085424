"""A worker is killed in the middle of an epoch; the loader restarts the workers, and the stream stays the same.

python examples/worker_restart.py
"""

from __future__ import annotations

import logging
import multiprocessing
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import resumable


class Noisy(Dataset[torch.Tensor]):
    """Samples with a random augmentation."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return one sample."""
        return index + torch.rand(())


def make() -> resumable.Loader[torch.Tensor]:
    """Wrap a DataLoader with two workers."""
    source: Any = DataLoader(Noisy(), batch_size=3, shuffle=True, num_workers=2)
    return resumable.wrap(source, on_worker_death="restart")


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
    expected = [batch.tolist() for batch in make()]

    harmed = []
    for batch in make():
        harmed.append(batch.tolist())
        if len(harmed) == 2:
            worker = multiprocessing.active_children()[0]
            print("killing a worker after step", len(harmed))
            worker.kill()
            worker.join()

    assert harmed == expected
    print("all", len(harmed), "batches are the same as in a run without a kill")
