"""Iterable-style datasets in a `DataLoader`, with any number of workers.

Each batch arrives with the number of the worker that made it. If the dataset or its iterator has `state_dict` and
`load_state_dict`, their state in that worker arrives with it. So a saved state holds, for each worker, the number of
its delivered batches and its state after the last of them, and says which worker is next.

On resume, each worker restores its own state. Without a state, it reads and drops as many samples, and sends none of
them. Either way, it compares a sample with its canary: the first sample after a state, or the last one dropped.
"""

from __future__ import annotations

import copy
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any

from resumable._content import END
from resumable._data import shards_of
from resumable._fetch.element_reader import FEW
from resumable._fetch.frameworks import Inside
from resumable._fetch.memory import copied, memory_of
from resumable._fetch.own_state import needs_arguments, state_methods
from resumable._fetch.restarting_workers import WorkersDied
from resumable._introspection import has, length_or_none, qualname_of
from resumable._naming import name_of
from resumable.backends.torch.engine import Engine, WorkerSetup, meter_of, restart_policy_of, shown, wants_stacks
from resumable.backends.torch.in_worker import LENIENT, StreamPlan, WorkerState, WorkerStream, state_of
from resumable.errors import PromiseWarning, StateMismatchWarning, UnsupportedError
from resumable.protocols import Traits

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from torch.utils.data import DataLoader

    from resumable._fetch.restarting_workers import DeadWorker, RestartPolicy
    from resumable._options import Options
    from resumable._stats import Meter
    from resumable.backends.torch.in_worker import Item


__all__ = ["Batches", "TorchStreamBackend"]


_SAME = "Use the same DataLoader options as the original run."
_HINTS = {
    "batch": _SAME,
    "drop_last": _SAME,
    "workers": f"{_SAME} To change the number of workers, use a fixed number of streams: wrap(..., streams=N). If the "
    "dataset has no state_dict(), N = the number of workers resumes this checkpoint; otherwise, start a new run. If "
    "the checkpoint says None, it was saved with streams=.",
    "streams": "Pass wrap(..., streams=N) with the N of the original run. If the dataset has no state_dict(), N can "
    "also be the number of workers of a run without streams=.",
}


class TorchStreamBackend:
    """Batches of a `DataLoader` over an `IterableDataset`.

    Args:
        loader: the user's.
        options: seed, randomness, shard, identity, and whether to replay and to compare canaries.
    """

    kind = "torch-iterable"

    def __init__(self, loader: DataLoader[Any], options: Options) -> None:
        self._loader, self._options = loader, options
        self._workers = max(loader.num_workers, 1)
        self._keeps = loader.num_workers == 0 or loader.persistent_workers  # the dataset persists between epochs
        methods = state_methods(loader.dataset)
        self._stateful = methods is not None and not options.replays
        if self._stateful and methods is not None and needs_arguments(methods[0]):
            raise _no_loader_of_its_own(qualname_of(type(loader.dataset)))
        self._batches: Batches | None = None
        self._rotated = self._leaves = (
            False  # the latter: an epoch may start in the same workers after a part of the epoch before
        )
        self._engine: Engine | None = None
        self.stored = shards_of(loader.dataset)
        self._policy, self._meter = restart_policy_of(loader, options, fixed=True), meter_of(loader)
        self.identity = {
            "source": name_of(loader.dataset, options.identity),
            "batch": loader.batch_size or 0,
            "drop_last": loader.drop_last,
            "workers": self._workers,
        }

        self.traits = Traits(
            hints=_HINTS,
            length=_batches_or_none(loader),
            keyed=True,
            needs_shard=True,
            goes_on=self._stateful and not loader.num_workers,
            reopens=True,
            compares_itself=options.resume != "replay_run",  # the workers do
        )
        self.inside = Inside(shows=shown(loader), restarts_workers=True, meter=self._meter)

    def open(self, epoch: int) -> Iterator[Any]:
        """Start an epoch."""
        # A dataset that persists can only continue with the next epoch; for any other epoch, it must start over.
        went_on = self._keeps and self._batches is not None and (self._leaves or self._batches.ended_before(epoch))
        states = [WorkerState()] * self._workers
        if went_on and self._stateful:
            states = [WorkerState.from_dict(values) for values in self.snapshot()["workers"]]
        elif self._stateful and self._batches is not None and not self._loader.num_workers:
            # An epoch was abandoned: the dataset in this process continues from there, not from what was read ahead.
            states = [WorkerState(state=state.get("state")) for state in self._batches.states()]
        # Rotated workers would start the epoch with the wrong worker, so new ones get the states.
        return self._begin(StreamPlan(epoch, 0, states), reuse=went_on and not self._rotated)

    def snapshot(self) -> Any:
        """Return the states of all workers after the last yielded batch."""
        if self._batches is not None and not self._batches.ended:
            return self._batches.snapshot()
        if not (self._stateful and self._keeps):
            return None
        if self._batches is not None:
            return {"next": 0, "workers": [_between_epochs(state) for state in self._batches.states()]}
        if self._loader.num_workers:
            return None
        return _before_first_epoch(self._loader.dataset)

    def restore(self, epoch: int, snapshot: Any) -> Iterator[Any]:
        """Restore the state of every worker, and continue with the worker whose turn it is."""
        states = [WorkerState.from_dict(values) for values in snapshot["workers"]]
        if len(states) != self._workers:
            raise ValueError(f"the snapshot has {len(states)} workers, but this loader has {self._workers}")
        return self._begin(StreamPlan(epoch, snapshot["next"], states), reuse=False)

    def _begin(self, plan: StreamPlan, *, reuse: bool) -> Iterator[Any]:
        policy = self._policy
        running = self._run(plan, reuse) if policy is None else _restarted(plan, self._run, policy, reuse=reuse)
        each = FEW if self._loader.batch_size in {None, 1} else 1  # batches with enough samples to compare
        peeks = self._workers * each if self._options.compares_data else 0
        self._batches = Batches(running, plan, self._meter, peeks=peeks)
        return self._batches

    def _run(self, plan: StreamPlan, reuse: bool) -> Generator[Item]:  # reuse: with the persistent workers
        if not reuse or self._engine is None:
            self._engine = self._make_engine(plan)
        self._rotated = plan.turn != 0
        return self._engine.run(None, seed=self._options.stream_seed, epoch=plan.epoch)

    @property
    def replays(self) -> bool:
        """Whether the dataset is opened again in each epoch, without a state."""
        return not self._stateful and self._options.resume != "replay_run"

    @property
    def lives(self) -> bool:
        """Whether the dataset lives over epochs: in this process, in its workers, or in memory that they share."""
        return self._keeps or memory_of(self._loader.dataset).shared

    @property
    def remembering(self) -> Any:
        """The dataset, if it is iterated over in this process, or workers start from it in each epoch."""
        return None if self._loader.num_workers and self.lives else self._loader.dataset

    def apart(self) -> TorchStreamBackend:
        """Return a backend with other workers, or with a copy of the dataset."""
        loader = copy.copy(self._loader)
        if not loader.num_workers:
            loader.__dict__["dataset"] = copied(loader.dataset)
        backend = TorchStreamBackend(loader, self._options)
        backend._leaves = True
        return backend

    def leave(self) -> None:
        """Do nothing: the workers continue with the next epoch."""

    def own_fields(self, snapshot: Any) -> list[Any]:
        """Return the fields of a snapshot other than a dataset's own state."""
        turn, workers = snapshot["next"], snapshot["workers"]
        if type(turn) is not int or turn not in range(max(len(workers), 1)):
            raise ValueError(f"source_state.snapshot.next must be the number of a worker, but it is {turn!r}")
        return [turn, [_own_fields(state) for state in workers]]

    def elements_before(self, snapshot: Any) -> int:
        """Return how many batches all workers together yielded before a snapshot."""
        return sum(WorkerState.from_dict(values).batches for values in snapshot["workers"])

    def replayed(self, snapshot: Any) -> int:
        """Return how many batches the workers read again to reach a snapshot: of workers without a state, or of all."""
        states, every = map(WorkerState.from_dict, snapshot["workers"]), self._options.replays
        return sum(state.batches for state in states if every or not state.has_own)

    def lenient(self, snapshot: Any) -> Any:
        """Return a snapshot that makes the workers warn about a different sample instead of raising an error."""
        states = [{**values, LENIENT: True} for values in snapshot["workers"]]
        return {**snapshot, "workers": states}

    def close(self) -> None:
        """Stop the persistent workers; their states hold their positions."""
        if self._loader.num_workers and self._engine is not None:
            self._engine.close()
            self._engine = None

    def _make_engine(self, plan: StreamPlan) -> Engine:
        rank = (self._options.find_world().rank,) if self._options.shard is False else ()
        stream = WorkerStream(self._loader, plan, self._options, rank)
        stacks = wants_stacks(self._loader, self._options)
        setup = WorkerSetup(self._loader.worker_init_fn, plan.turn, stacks=stacks)
        return Engine(self._loader, stream, setup, self._policy, self._meter)


def _batches_or_none(loader: DataLoader[Any]) -> int | None:
    """Return the batches per epoch of a stream; None if unknown, as for a `ChainDataset` of datasets without length."""
    return length_or_none(loader) if has(loader.dataset, "__len__") else None


def _before_first_epoch(dataset: Any) -> Any:
    """Return the snapshot of a dataset in this process before its first epoch."""
    try:
        state = state_of(dataset)
    except Exception:  # noqa: BLE001  # any type: some datasets have no state before their first iter()
        return None
    return {"next": 0, "workers": [WorkerState(state=state).as_dict()]}


def _between_epochs(state: dict[str, Any]) -> dict[str, Any]:
    """Return a worker's state at the start of the next epoch: only the dataset's state."""
    kept = {name: value for name, value in state.items() if name == "state"}
    return {"batches": 0, "ended": False, **kept}


def _own_fields(values: dict[str, Any]) -> list[Any]:
    state = WorkerState.from_dict(values)
    elsewhere = ["elsewhere"] if state.elsewhere else []
    return [state.batches, state.ended, *([values["canary"]] if "canary" in values else []), *elsewhere]


def _no_loader_of_its_own(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name}.state_dict() needs arguments that only its own loader knows.\n"
        "Its state could not be saved. Use the loader that its library provides, such as StreamingDataLoader, and wrap "
        'that. Or pass wrap(..., resume="replay") to read each epoch again up to the saved position.'
    )


def _restarted(
    plan: StreamPlan, begin: Callable[[StreamPlan, bool], Generator[Item]], policy: RestartPolicy, *, reuse: bool
) -> Generator[Item]:
    """Yield the items of an epoch, and restart workers that die.

    Args:
        plan: the position at which the epoch starts.
        begin: runs workers from a plan on: the persistent ones, or new ones.
        policy: decides whether to restart.
        reuse: start with the persistent workers.

    Raises:
        WorkerError: workers died too often.
    """
    states, turn = list(plan.states), plan.turn

    def named(lost: DeadWorker) -> DeadWorker:
        return lost._replace(number=(lost.number + plan.turn) % len(states))

    def batch_of(lost: DeadWorker) -> str:
        return f"epoch {plan.epoch}, batch {states[lost.number].batches} of this worker" if lost.asked else ""

    while True:
        running = begin(plan, reuse)
        try:
            for item in running:
                policy.delivered()
                states[item.worker] = WorkerState.from_dict(item.state)
                turn = (item.worker + 1) % len(states)
                yield item
        except WorkersDied as died:
            policy.after(WorkersDied([named(lost) for lost in died.lost], died.owed, hangs=died.hangs), batch_of)
            plan, reuse = StreamPlan(plan.epoch, turn, list(states)), False
        else:
            return
        finally:
            running.close()


class Batches:
    """The batches of an epoch, with a record of which worker made which batch.

    Args:
        running: yields the workers' items in order.
        plan: the position at which the epoch starts.
        meter: records the time that the workers needed for the yielded batches.
        peeks: number of items that are read ahead if a snapshot holds the canary of each worker's next samples.
            Otherwise 0.
    """

    def __init__(self, running: Iterator[Item], plan: StreamPlan, meter: Meter | None, *, peeks: int) -> None:
        self._running, self._meter, self._peeks = running, meter, peeks
        self._ahead: deque[Item | Exception] = deque()
        self._states = list(plan.states)
        self._turn = plan.turn
        self._epoch = plan.epoch
        self._told = False  # that samples show no content
        self.last = -1  # the worker of the last batch
        self.ended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while True:
            try:
                item = self._next()
            except StopIteration:
                self.ended = True
                raise
            self._states[item.worker] = WorkerState.from_dict(item.state)
            self._turn = (item.worker + 1) % len(self._states)
            if item.warning is not None:
                warnings.warn(item.warning, StateMismatchWarning, stacklevel=2)
            if item.unseen is not None and not self._told:
                self._told = True
                warnings.warn(item.unseen, PromiseWarning, stacklevel=2)
            if item.batch:
                if self._meter is not None:
                    self._meter.add(item.seconds)
                self.last = item.worker
                return item.batch[0]

    def _next(self) -> Item:
        item = self._ahead.popleft() if self._ahead else next(self._running)
        if isinstance(item, Exception):
            raise item
        return item

    def has_more(self) -> bool:
        """Return whether more batches follow. Reads ahead; an error is raised later, when its turn comes."""
        while not any(isinstance(item, Exception) or item.batch for item in self._ahead):
            if not self._read_ahead():
                break
        return any(isinstance(item, Exception) or item.batch for item in self._ahead)

    def _peek(self) -> None:
        """Read items of each worker ahead."""
        while len(self._ahead) < self._peeks and self._read_ahead():
            pass

    def _read_ahead(self) -> bool:
        """Read an item ahead, and return whether more may follow. An error is kept until its turn comes."""
        try:
            self._ahead.append(next(self._running))
        except StopIteration:
            return False
        except Exception as error:  # noqa: BLE001  # any type
            self._ahead.append(error)
            return False
        return True

    def ended_before(self, epoch: int) -> bool:
        """Return whether these were all the batches of the epoch directly before `epoch`."""
        return self.ended and epoch == self._epoch + 1

    def states(self) -> list[dict[str, Any]]:
        """Return every worker's state."""
        return [state.as_dict() for state in self._states]

    def snapshot(self) -> Any:
        """Return every worker's state, and whose turn it is."""
        states = self.states()
        if self._peeks and any(state.has_own for state in self._states):
            self._peek()
            first: dict[int, list[str]] = {}
            for item in self._ahead:
                if not isinstance(item, Exception):
                    known = first.setdefault(item.worker, [])
                    known += [] if item.first is None else item.first.split(",")
                    known += [END] if item.state["ended"] and known else []
            states = [_with_canary(state, first.get(worker)) for worker, state in enumerate(states)]
        return {"next": self._turn, "workers": states}

    def close(self) -> None:
        """Stop the workers."""
        self._running.close()  # type: ignore[attr-defined]  # a generator


def _with_canary(state: dict[str, Any], digests: list[str] | None) -> dict[str, Any]:
    """Return a worker's state with the canary of its next samples, if it has a dataset's own state."""
    if not {"state", "iterator"} & set(state):
        return state
    known = {name: value for name, value in state.items() if name != "canary"}
    return {**known, "canary": ",".join(digests[:FEW])} if digests else known
