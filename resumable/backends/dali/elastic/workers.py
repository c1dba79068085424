"""Worker processes that read the samples: a PyTorch `DataLoader` over requests."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from multiprocessing import connection, parent_process
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from resumable.backends.dali.elastic.inputs import Fed
from resumable.faults import point

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from numpy.typing import NDArray

    from resumable.protocols import Request
    from resumable.reading import Reader

__all__ = ["Workers"]

Packed = tuple["torch.Tensor", list[int], list["NDArray[Any]"]]


class Workers:
    """Reads requests ahead, in processes that stay until this object is dropped.

    Args:
        reader: reads a request, in the workers.
        count: number of processes.
        start_method: how they are started.
    """

    def __init__(self, reader: Reader, count: int, start_method: str) -> None:
        self._reader, self._count, self._start_method = reader, count, start_method
        self._requests = _Requests()
        self._loader: DataLoader[Any] | None = None
        self._ended = False

    def read(self, requests: Iterable[Request]) -> Generator[Fed]:
        """Yield what the workers read, in order."""
        self._requests.current = requests
        loader = self._build() if self._loader is None else self._loader
        self._loader = None  # back where it was unless something fails
        try:
            for request, (raw, lengths, labels) in loader:
                yield Fed(request, np.split(raw.numpy(), np.cumsum(lengths)[:-1]), labels)
        except GeneratorExit:
            self._keep(loader)
            raise
        except BaseException:
            _end(loader)
            raise
        self._keep(loader)

    def end(self) -> None:
        """End the processes, for good, though something may still hold them.

        As long as one that died is held, PyTorch tells of it whenever any process ends, between any two lines.
        """
        self._ended = True
        if self._loader is not None:
            _end(self._loader)

    def _keep(self, loader: DataLoader[Any]) -> None:
        if self._ended:
            _end(loader)
        else:
            self._loader = loader

    def _build(self) -> DataLoader[Any]:
        return DataLoader(
            _Reading(self._reader),  # type: ignore[arg-type]  # map-style by its __getitem__, whose index is a request
            batch_size=None,
            sampler=self._requests,
            collate_fn=_unchanged,
            num_workers=self._count,
            multiprocessing_context=self._start_method,
            worker_init_fn=_start,
            persistent_workers=True,
            generator=torch.Generator(),  # the trainer's stays as it is
        )


def _end(loader: DataLoader[Any]) -> None:
    with suppress(RuntimeError):  # what the handler says of a worker that is found dead here, between any two lines
        shut_down = getattr(loader._iterator, "_shutdown_workers", None)  # noqa: SLF001  # the only way to end them now
        if shut_down is not None:
            shut_down()


class _Requests:
    """Stands where a `DataLoader` has its sampler, so that the workers can get new requests."""

    def __init__(self) -> None:
        self.current: Iterable[Request] = ()

    def __iter__(self) -> Iterator[Request]:
        return iter(self.current)


class _Reading:
    """What a worker sees: a dataset whose index is a request; the samples are packed, as many small arrays are slow."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __getitem__(self, request: Request) -> tuple[Request, Packed]:
        samples = self._reader.read(request)
        raw = [raw for raw, _ in samples]
        packed = torch.from_numpy(np.concatenate(raw))
        return request, (packed, [len(part) for part in raw], [label for _, label in samples])


def _unchanged(item: Any) -> Any:
    return item


def _start(worker: int) -> None:
    """Begin a worker: it ends with its parent, also where that is killed and says nothing."""
    point("worker.start")
    threading.Thread(target=_end_with_parent, name=f"parent of worker {worker}", daemon=True).start()


def _end_with_parent() -> None:
    # Not PR_SET_PDEATHSIG: it fires when the thread that started this process ends, and that may be any.
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
