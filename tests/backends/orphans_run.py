"""A loop that is killed while its workers have read more than the pipe to it holds. It prints their processes first."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import resumable

if TYPE_CHECKING:
    from collections.abc import Iterator


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3000,), float(index))


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(Rows().__getitem__, range(1000))


source = Rows() if sys.argv[1] == "indexed" else Stream()
loader = iter(resumable.wrap(DataLoader(source, batch_size=16, num_workers=2, prefetch_factor=4)))
next(loader)
time.sleep(1)
sys.stdout.write(" ".join(str(process.pid) for process in multiprocessing.active_children()))
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGKILL)
