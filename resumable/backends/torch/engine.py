"""The user's `DataLoader` rebuilt around what we want to be read: same workers, same options, our requests."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, get_worker_info

from resumable.backends.torch.deaths import describe_death
from resumable.errors import WorkerError
from resumable.faults import point
from resumable.keyed import derive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Engine", "WorkerSetup"]


class Engine:
    """Runs a `DataLoader` of ours with the worker options of the user's.

    The user's object is left alone. Nothing is drawn from torch's global generator: the worker seeds come from a
    generator of our own, so that iterating (and how often) never changes the trainer's randomness.

    Args:
        loader: the user's.
        dataset: what the workers run: map-style if it is to be asked by requests, else iterable-style.
        setup: runs first in each worker.
    """

    def __init__(self, loader: DataLoader[Any], dataset: Any, setup: WorkerSetup) -> None:
        self._user, self._dataset, self._setup = loader, dataset, setup
        self._requests = _Requests()
        self._loader: DataLoader[Any] | None = None

    def run(self, requests: Iterable[Any] | None, *, seed: int, epoch: int) -> Iterator[Any]:
        """Yield what the workers return, in order.

        Raises:
            WorkerError: a worker died or could not be started.
        """
        try:
            yield from self._run(requests, int(derive(seed, epoch, words=1, purpose=b"workers")[0]) >> 1)
        except (RuntimeError, ConnectionError, EOFError) as error:
            # Around all of it, as torch's handler of the signal that a child died raises between any two lines.
            told = describe_death(error) if self._user.num_workers else None
            if told is None:
                raise
            raise WorkerError(told) from error

    def _run(self, requests: Iterable[Any] | None, seed: int) -> Iterator[Any]:
        self._requests.current = requests
        iterator: Iterator[Any] | None = None
        healthy = False
        try:
            iterator = self._start(seed)
            while True:
                healthy = False
                try:
                    item = next(iterator)
                except StopIteration:
                    healthy = True
                    return
                healthy = True
                yield item
        finally:
            if not healthy or not self._user.persistent_workers:
                self.stop()
            if not healthy:
                # An error's traceback keeps the iterator alive, and its workers with it, until the error is dropped.
                getattr(iterator, "_shutdown_workers", _nothing)()

    def stop(self) -> None:
        """Forget the workers; they end."""
        self._loader = None

    def _start(self, seed: int) -> Iterator[Any]:
        if self._loader is None:
            self._loader = self._build()
        assert self._loader.generator is not None
        self._loader.generator.manual_seed(seed)
        try:
            return iter(self._loader)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            if not self._user.num_workers or _can_pickle(self._user):
                raise
            raise WorkerError(
                f"the workers could not be started: dataset, collate_fn or worker_init_fn cannot be pickled: {error}\n"
                "Workers that are not forked get a pickled copy. Define them at the top level of a module, or use "
                'multiprocessing_context="fork".'
            ) from error

    def _build(self) -> DataLoader[Any]:
        user = self._user
        given = {name: getattr(user, name) for name in _KEPT if getattr(user, name, None) is not None}
        if user.num_workers:
            given |= {"prefetch_factor": user.prefetch_factor, "worker_init_fn": self._setup}
        if self._requests.current is not None:
            given["sampler"] = self._requests
        return DataLoader(self._dataset, batch_size=None, collate_fn=_unchanged, generator=torch.Generator(), **given)


_KEPT = ("num_workers", "pin_memory", "pin_memory_device", "timeout", "multiprocessing_context", "persistent_workers")


class _Requests:
    """Stands where a `DataLoader` has its sampler, so that persistent workers can get new requests."""

    def __init__(self) -> None:
        self.current: Iterable[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        assert self.current is not None
        return iter(self.current)


class WorkerSetup:
    """Shows each worker the dataset and the worker number that the user's code expects, then runs `worker_init_fn`.

    Args:
        function: the user's `worker_init_fn`, or None.
        rotation: number that the first worker goes by; the others follow in turn.
    """

    def __init__(self, function: Callable[[int], None] | None, rotation: int = 0) -> None:
        self._function = function
        self._rotation = rotation

    def __call__(self, worker: int) -> None:
        """Run in a worker."""
        point("worker.start")
        info = get_worker_info()
        assert info is not None
        number = (worker + self._rotation) % info.num_workers
        # The object is frozen for users; what it says has to be true for theirs, not for our wrapper.
        object.__setattr__(info, "seed", info.seed - worker + number)
        object.__setattr__(info, "id", number)
        object.__setattr__(info, "dataset", info.dataset.user_dataset)  # type: ignore[attr-defined]  # always ours
        if self._function is not None:
            self._function(number)


def _nothing() -> None:
    pass


def _unchanged(item: Any) -> Any:
    return item


def _can_pickle(loader: DataLoader[Any]) -> bool:
    try:
        pickle.dumps((loader.dataset, loader.collate_fn, loader.worker_init_fn))
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True
