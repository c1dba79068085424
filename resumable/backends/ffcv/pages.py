"""FFCV's memory managers for a part of an epoch: nothing of theirs is left behind, no thread waits for a dead one."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from ffcv.memory_managers import OSCacheManager

from resumable.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ffcv.loader import Loader

    from resumable.protocols import Request

__all__ = ["needs_all_requests", "opened", "wake_if_readers_died"]


def needs_all_requests(loader: Loader) -> bool:
    """Return whether the pages of the whole rest of an epoch are planned before it begins (`os_cache=False`)."""
    return not isinstance(loader.memory_manager, OSCacheManager)


@contextmanager
def opened(loader: Loader, requests: Sequence[Request]) -> Iterator[Any]:
    """Open the file; with a cache of pages, start the threads that read them and end them afterwards."""
    context = loader.memory_manager.schedule_epoch([np.asarray(request.indices).tolist() for request in requests])
    context.__enter__()
    try:
        yield context
    finally:
        context.__exit__(None, None, None)
        for thread in _readers(context):
            thread.join()


def wake_if_readers_died(context: Any) -> None:
    """Make the thread that waits for a page fail where no thread is left to read it, as it would wait forever."""
    readers = _readers(context)
    if readers and not any(reader.is_alive() for reader in readers):
        context.executor.loaded_queue.put(_NoReaders(context.fname))


def _readers(context: Any) -> Any:
    return getattr(getattr(context, "executor", None), "threads", ())


class _NoReaders:
    """In the place of a page's number, raises in the thread that looks it up."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __hash__(self) -> int:
        raise DataError(
            f"the threads that read {self._name} have died: see above for why.\n"
            "No further page would come. Is the file still there? The loader's state is that before this batch."
        )
