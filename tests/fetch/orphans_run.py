"""A loop that is killed while its workers wait for it, and would for ever. It prints their processes first.

indexed, stream  they have read more than the pipe to it holds
half             they were sent the first half of a message
late             they look for it when it is gone already
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

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


def wait_for_the_end() -> None:
    while os.getppid() == LOOP:
        time.sleep(0.05)


LOOP = os.getpid()
if sys.argv[1] == "late":
    os.register_at_fork(after_in_child=wait_for_the_end)
source = Stream() if sys.argv[1] == "stream" else Rows()
loader = iter(resumable.wrap(DataLoader(source, batch_size=16, num_workers=2, prefetch_factor=4)))
first = threading.Thread(target=next, args=(loader,), daemon=True)
first.start()
if sys.argv[1] != "late":
    first.join()
while len(multiprocessing.active_children()) < 2:  # the workers
    time.sleep(0.01)
time.sleep(1)
sys.stdout.write(" ".join(str(process.pid) for process in multiprocessing.active_children()))
sys.stdout.flush()
if sys.argv[1] == "half":
    for one in gc.get_objects():
        if type(one) is _MultiProcessingDataLoaderIter:
            queues: list[Any] = one._index_queues
            for messages in queues:
                os.write(messages._writer.fileno(), struct.pack("!i", 1000) + b"half")
os.kill(os.getpid(), signal.SIGKILL)
