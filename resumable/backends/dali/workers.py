"""Worker processes that read the samples for DALI."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from contextlib import closing
from functools import partial
from multiprocessing import connection, parent_process
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from resumable._fetch.workers import RequestDataset, Workers
from resumable.backends.dali.samples import Fed
from resumable.failpoints import point

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from numpy.typing import NDArray

    from resumable._fetch.reader import Reader
    from resumable.backends.dali.samples import Labelled
    from resumable.protocols import Request


__all__ = ["SampleWorkers"]


Packed = tuple["torch.Tensor", list[int], list["NDArray[Any]"]]


class SampleWorkers:
    """Reads requests ahead, in processes that run until this object is dropped.

    Args:
        reader: reads a request, in the workers.
        count: number of processes.
        start_method: how they are started.
    """

    def __init__(self, reader: Reader, count: int, start_method: str) -> None:
        self._workers = Workers(RequestDataset(reader, _pack), partial(_options, count, start_method))

    def read(self, requests: Iterable[Request]) -> Generator[Fed]:
        """Yield the samples that the workers read, in order."""
        asked: deque[Request] = deque()
        with closing(self._workers.run(_remember(requests, asked))) as answers:
            for raw, lengths, labels in answers:
                yield Fed(asked.popleft(), np.split(raw.numpy(), np.cumsum(lengths)[:-1]), labels)

    def end(self) -> None:
        """Stop the processes for good, even if something still references them."""
        self._workers.end()


def _options(count: int, start_method: str) -> dict[str, Any]:
    return {
        "num_workers": count,
        "multiprocessing_context": start_method,
        "worker_init_fn": _start,
        "persistent_workers": True,
    }


def _remember(requests: Iterable[Request], asked: deque[Request]) -> Iterator[Request]:
    for request in requests:
        asked.append(request)
        yield request


def _pack(samples: list[Labelled]) -> Packed:
    """Concatenate the samples to one array, as many small arrays are slow to send."""
    raw = [raw for raw, _ in samples]
    return torch.from_numpy(np.concatenate(raw)), [len(part) for part in raw], [label for _, label in samples]


def _start(worker: int) -> None:
    """Start a worker, which ends with its parent, even if the parent is killed."""
    point("worker.start")
    threading.Thread(target=_end_with_parent, name=f"parent of worker {worker}", daemon=True).start()


def _end_with_parent() -> None:
    # Not PR_SET_PDEATHSIG: it fires when the thread that started this process ends, which may be any thread.
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
