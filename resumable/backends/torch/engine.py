"""The user's `DataLoader` rebuilt around what we want to be read: same workers, same options, our requests."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.data import get_worker_info

from resumable._fetch.healing import HealingWorkers
from resumable._fetch.stalls import answer
from resumable._fetch.workers import Workers
from resumable._randomness.keyed import derive
from resumable.failpoints import point

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from torch.utils.data import DataLoader

    from resumable._options import Options
    from resumable.protocols import Request

__all__ = ["Engine", "WorkerSetup", "wants_stacks"]


class Engine:
    """Runs worker processes with the options of the user's `DataLoader`, which is left alone.

    Args:
        loader: the user's.
        dataset: what the workers run: a `RequestDataset` if it is to be asked by requests, else iterable-style.
        setup: runs first in each worker.
        heals: start workers again where one dies; those of a stream raise `Died` instead.
    """

    def __init__(self, loader: DataLoader[Any], dataset: Any, setup: WorkerSetup, *, heals: bool = False) -> None:
        kind = HealingWorkers if heals and loader.num_workers else Workers
        self._workers = kind(dataset, partial(_options, loader, setup))

    def run(self, requests: Iterable[Request] | None, *, seed: int, epoch: int) -> Generator[Any]:
        """Yield what the workers return, in order.

        Raises:
            WorkerError: a worker died or could not be started.
        """
        return self._workers.run(requests, seed=int(derive(seed, epoch, words=1, purpose=b"workers")[0]) >> 1)

    def close(self) -> None:
        """End the workers that live on between runs."""
        self._workers.close()


_KEPT = ("num_workers", "pin_memory", "pin_memory_device", "timeout", "multiprocessing_context", "persistent_workers")


def _options(user: DataLoader[Any], setup: WorkerSetup) -> dict[str, Any]:
    given = {name: getattr(user, name) for name in _KEPT if getattr(user, name, None) is not None}
    return given | ({"prefetch_factor": user.prefetch_factor, "worker_init_fn": setup} if user.num_workers else {})


def wants_stacks(loader: DataLoader[Any], options: Options) -> bool:
    """Return whether workers may be asked for their stacks: by `stall_after`, or where one that hangs is ended."""
    return options.stall_after is not None or (options.on_worker_death == "restart" and loader.timeout > 0)


class WorkerSetup:
    """Shows each worker the dataset and the worker number that the user's code expects, then runs `worker_init_fn`.

    Args:
        function: the user's `worker_init_fn`, or None.
        rotation: number that the first worker goes by; the others follow in turn.
        stacks: let the workers write their stacks when they are asked for.
    """

    def __init__(self, function: Callable[[int], None] | None, rotation: int = 0, *, stacks: bool = False) -> None:
        self._function = function
        self._rotation, self._stacks = rotation, stacks

    def __call__(self, worker: int) -> None:
        """Run in a worker."""
        point("worker.start")
        if self._stacks:
            answer()
        info = get_worker_info()
        assert info is not None
        number = (worker + self._rotation) % info.num_workers
        # The object is frozen for users; what it says has to be true for theirs, not for our wrapper.
        object.__setattr__(info, "seed", info.seed - worker + number)
        object.__setattr__(info, "id", number)
        object.__setattr__(info, "dataset", info.dataset.user_dataset)  # type: ignore[attr-defined]  # always ours
        if self._function is not None:
            self._function(number)
