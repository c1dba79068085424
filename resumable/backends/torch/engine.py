"""Rebuilds the user's `DataLoader` for our requests, with the same workers and options."""

from __future__ import annotations

import logging
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.data import get_worker_info

from resumable._fetch.restarting_workers import RestartingWorkers, RestartPolicy
from resumable._fetch.stalls import answer
from resumable._fetch.workers import RequestDataset, Workers, end_when_orphaned, heeded, outlive, tell_once
from resumable._randomness.keyed import derive
from resumable._stats import Meter
from resumable._torch_private import plain_workers
from resumable.failpoints import point

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from torch.utils.data import DataLoader

    from resumable._fetch.reader import Reader
    from resumable._options import Options
    from resumable.protocols import Request


__all__ = ["Engine", "WorkerSetup", "make_engine", "meter_of", "restart_policy_of", "shown", "wants_stacks"]


def make_engine(loader: DataLoader[Any], reader: Reader, options: Options, meter: Meter | None) -> Engine:
    """Return an engine that reads requests in the workers of a `DataLoader`, or in this process if it has none."""
    dataset = RequestDataset(reader, in_worker=loader.num_workers > 0)
    setup = WorkerSetup(loader.worker_init_fn, stacks=wants_stacks(loader, options))
    return Engine(loader, dataset, setup, restart_policy_of(loader, options), meter)


class Engine:
    """Runs worker processes with the options of the user's `DataLoader`, which is not modified.

    Args:
        loader: the user's.
        dataset: runs in the workers: a `RequestDataset` to read requests, otherwise iterable-style.
        setup: runs first in each worker.
        policy: decides whether to restart workers if one dies (`WorkersDied` for the workers of a stream); None to
            raise an error.
        meter: records what the workers measure.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        dataset: Any,
        setup: WorkerSetup,
        policy: RestartPolicy | None = None,
        meter: Meter | None = None,
    ) -> None:
        given, why = partial(_options, loader, setup), plain_workers()
        if policy is not None and why:
            tell_once(logging.WARNING, _NO_RESTARTS.format(why))
        if policy is None or why:
            self._workers = Workers(dataset, given, meter)
        else:
            self._workers = RestartingWorkers(dataset, given, policy, meter)

    def run(self, requests: Iterable[Request] | None, *, seed: int, epoch: int) -> Generator[Any]:
        """Yield what the workers return, in order.

        Raises:
            WorkerError: a worker died or could not be started.
        """
        return self._workers.run(requests, seed=int(derive(seed, epoch, words=1, purpose=b"workers")[0]) >> 1)

    def close(self) -> None:
        """Stop the workers that persist between runs."""
        self._workers.close()


_NO_RESTARTS = (
    'on_worker_death="restart" has no effect, because {}. If a worker dies, a WorkerError is raised, and a resume '
    "continues at the batch that was not delivered."
)
_KEPT = ("num_workers", "pin_memory", "pin_memory_device", "timeout", "multiprocessing_context", "persistent_workers")


def _options(user: DataLoader[Any], setup: WorkerSetup) -> dict[str, Any]:
    given = {name: getattr(user, name) for name in _KEPT if getattr(user, name, None) is not None}
    return given | ({"prefetch_factor": user.prefetch_factor, "worker_init_fn": setup} if user.num_workers else {})


class WorkerSetup:
    """Shows each worker the dataset and the worker number that the user's code expects, then runs `worker_init_fn`.

    Args:
        function: the user's `worker_init_fn`, or None.
        rotation: number of the first worker; the others follow in order.
        stacks: let the workers write their stacks on request.
    """

    def __init__(self, function: Callable[[int], None] | None, rotation: int = 0, *, stacks: bool = False) -> None:
        self._function = function
        self._rotation, self._stacks = rotation, stacks
        self._heeded: frozenset[int] = frozenset()

    def __getstate__(self) -> dict[str, Any]:
        """Include what a process that is not forked cannot know."""
        return vars(self) | {"_heeded": heeded()}

    def __call__(self, worker: int) -> None:
        """Run in a worker."""
        point("worker.start")
        if self._stacks:
            answer()
        outlive(self._heeded | heeded())
        _keep_no_common_lock()
        end_when_orphaned()
        info = get_worker_info()
        assert info is not None
        number = (worker + self._rotation) % info.num_workers
        # The object is read-only for users. It must describe the user's dataset, not our wrapper.
        object.__setattr__(info, "seed", info.seed - worker + number)
        object.__setattr__(info, "id", number)
        object.__setattr__(info, "dataset", info.dataset.user_dataset)  # type: ignore[attr-defined]  # always ours
        if self._function is not None:
            self._function(number)


def _keep_no_common_lock() -> None:
    """Set a separate lock for the progress bars of this process.

    tqdm shares one lock among all forked processes, the training process included. A process that is killed while it
    holds the lock would block them all.
    """
    tqdm = sys.modules.get("tqdm")
    if tqdm is not None:
        tqdm.tqdm.set_lock(threading.RLock())


def restart_policy_of(loader: DataLoader[Any], options: Options, *, fixed: bool = False) -> RestartPolicy | None:
    """Return the policy that decides whether to restart workers; None without workers, or if the user wants no restart.

    Args:
        loader: the user's.
        options: the user's choice.
        fixed: whether the stream depends on the number of workers.
    """
    restarts = options.on_worker_death == "restart" and loader.num_workers > 0
    return RestartPolicy(loader.num_workers, fixed=fixed) if restarts else None


def meter_of(loader: DataLoader[Any]) -> Meter | None:
    """Return the meter for the workers of a `DataLoader`; None if it has none."""
    return Meter() if loader.num_workers else None


def wants_stacks(loader: DataLoader[Any], options: Options) -> bool:
    """Return whether workers may be asked for their stacks: for `stall_after`, or before one that hangs is killed."""
    return options.stall_after is not None or (options.on_worker_death == "restart" and loader.timeout > 0)


def shown(loader: DataLoader[Any], *also: str) -> dict[str, Any]:
    """Return the attributes of a `DataLoader` that its Loader also has."""
    return {name: getattr(loader, name) for name in ("batch_size", "num_workers", "collate_fn", *also)}
