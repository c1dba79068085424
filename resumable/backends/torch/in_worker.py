"""Code that runs in the workers of an iterable-style `DataLoader`, and each worker's state as plain values."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.multiprocessing import get_context
from torch.utils.data import IterableDataset, get_worker_info

from resumable._content import Canary
from resumable._fetch.element_reader import FEW, SeededReader
from resumable._fetch.failures import note, sending
from resumable._fetch.own_state import state_methods
from resumable._fetch.positioning import Positioner, give_back, iterate, iterate_at, orders_of, shows_nothing
from resumable._fetch.reader import no_end
from resumable._fetch.transport import Answer
from resumable._introspection import ask, qualname_of
from resumable._randomness.keys import SampleKeys, isolated, reseed
from resumable._stats import Made
from resumable.backends.torch.hugging_face import keep_own_epochs, restore_own_shards
from resumable.errors import StateMismatchError
from resumable.failpoints import point

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from torch.utils.data import DataLoader

    from resumable._options import Options


__all__ = ["LENIENT", "Item", "StreamPlan", "WorkerEpoch", "WorkerState", "WorkerStream", "stamped", "state_of"]


_STREAM = 2
LENIENT, _ELSEWHERE = "lenient", "elsewhere"
_MOST_BATCHES = 1 << 40  # per epoch; more than any run has


class WorkerStream(IterableDataset[Any]):
    """Yields an `Item` for every batch; the last item of an epoch may have no batch.

    Args:
        loader: the user's; its dataset, batch size, `collate_fn` and `drop_last` are used.
        plan: the position at which the first epoch starts.
        options: seed, randomness, whether to replay the dataset, and whether to compare canaries.
        stream: integers that distinguish this rank's keys, if each rank has its own stream.
    """

    called = "worker"

    def __init__(self, loader: DataLoader[Any], plan: StreamPlan, options: Options, stream: tuple[int, ...]) -> None:
        self.user_dataset: Any = loader.dataset
        self._batch_size, self._drop_last, self._collate = loader.batch_size, loader.drop_last, loader.collate_fn
        self._plan, self._seed, self._stream = plan, options.stream_seed, stream
        self.randomness = options.randomness or "sample"
        self.replays, self.compares = options.replays, options.compares_data
        self._teller = EpochTeller(loader)
        self._epochs_begun, self.in_worker = 0, False  # in a worker, the global RNGs may be changed
        self._next_state = WorkerState()  # where the next epoch starts, unless the dataset continues on its own

    def __iter__(self) -> Iterator[Item]:
        """Start the planned epoch, or the next one on later calls."""
        info = get_worker_info()
        worker, epoch = (0 if info is None else info.id), self._plan.epoch + self._epochs_begun
        state = self._plan.states[worker] if self._epochs_begun == 0 else self._next_state
        if info is not None and self._epochs_begun == 0:
            keep_own_epochs()
            restore_own_shards()
        self._epochs_begun, self._next_state, self.in_worker = self._epochs_begun + 1, WorkerState(), info is not None
        if state.ended:
            self._next_state = WorkerState(state=state.state)
            return iter(())
        running = WorkerEpoch(self, self.user_dataset, worker, epoch, state).run()
        return running if info is None else sending(stamped(running))

    def tell_epoch(self, dataset: Any, epoch: int) -> None:
        """Call the dataset's `set_epoch`, if it has one."""
        self._teller.tell(dataset, epoch)

    def size(self) -> int:
        """Samples of a full batch."""
        return self._batch_size or 1

    def batch(self, samples: list[Any]) -> Any:
        """Make a batch; None if it is incomplete and incomplete batches are dropped."""
        if self._drop_last and len(samples) < self.size():
            return None
        return [no_end("collate_fn", self._collate, samples if self._batch_size is not None else samples[0])]

    def keys(self, epoch: int, worker: int) -> SampleKeys:
        """Return the keys of a worker's samples."""
        return SampleKeys(self._seed, epoch, _STREAM, worker, *self._stream)


class EpochTeller:
    """Calls `set_epoch` in one worker first, and then in the others.

    A dataset may keep its epoch in memory that its workers share, and `set_epoch` may increment it. If two workers
    called it at the same time, they would increment it twice. After the first worker, the others only write the value
    that is already there. So they need not wait for each other, and do not disturb a worker that is already reading.

    Args:
        loader: the user's; determines the kind of the lock.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._epoch: Any = None
        if loader.num_workers > 1:  # get_context() fixes the default for the whole process
            context: Any = loader.multiprocessing_context or get_context()
            self._epoch = context.Value("q", -1)

    def tell(self, dataset: Any, epoch: int) -> None:
        """Call the dataset's `set_epoch`, if it has one."""
        set_epoch = ask(dataset, "set_epoch")
        if not callable(set_epoch):
            return
        if self._epoch is not None:
            with self._epoch.get_lock():
                if self._epoch.value != epoch:
                    set_epoch(epoch)
                    self._epoch.value = epoch
                    return
        set_epoch(epoch)


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """The position at which an epoch starts: the states of all workers, and the number of the next worker."""

    epoch: int
    turn: int
    states: list[WorkerState]


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The progress of one worker.

    Args:
        batches: number of batches delivered in this epoch.
        ended: whether the worker has finished this epoch.
        state: the dataset's state after these batches, if it has one.
        iterator: the state of the dataset's iterator after these batches, if it is separate.
        canary: digests of the next few samples if there is a state; otherwise, of the last delivered sample.
        strict: whether a different sample is an error instead of a warning.
        elsewhere: whether a different rank read this stream, so only the number of batches is known.
    """

    batches: int = 0
    ended: bool = False
    state: Any = None
    iterator: Any = None
    canary: str | None = None
    strict: bool = True
    elsewhere: bool = False

    @property
    def has_own(self) -> bool:
        """Whether the dataset or its iterator has a state."""
        return self.state is not None or self.iterator is not None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, without those that are None."""
        later = {"state": self.state, "iterator": self.iterator, "canary": self.canary}
        return {
            "batches": self.batches,
            "ended": self.ended,
            **{name: value for name, value in later.items() if value is not None},
            **({_ELSEWHERE: True} if self.elsewhere else {}),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> WorkerState:
        """Make a state from the values of `as_dict`.

        Raises:
            KeyError: a field is missing.
            ValueError: a field has an impossible value.
        """
        batches, ended = values["batches"], values["ended"]
        later = {name: values.get(name) for name in ("state", "iterator", "canary")}
        if type(batches) is not int or not 0 <= batches <= _MOST_BATCHES:
            raise ValueError(f"a worker's batches must be an integer from 0 to {_MOST_BATCHES}, but it is {batches!r}")
        if type(ended) is not bool or not isinstance(later["canary"], str | None):
            raise ValueError(f"a worker's ended and canary must be a bool and a string: {ended!r}, {later['canary']!r}")
        elsewhere = values.get(_ELSEWHERE, False) is True
        return cls(batches, ended, **later, strict=not values.get(LENIENT, False), elsewhere=elsewhere)


class Item(NamedTuple):
    """A message from a worker.

    Args:
        worker: its number.
        state: its state afterwards, in the form of `WorkerState.as_dict`.
        batch: a list with the batch; empty if there is none.
        first: digests of the batch's first few samples, if the dataset has a state.
        warning: text of a warning.
        seconds: time that reading the batch took, without restoring a position.
        unseen: text about samples that show no content.
    """

    worker: int
    state: dict[str, Any]
    batch: list[Any]
    first: str | None = None
    warning: str | None = None
    seconds: float = 0.0
    unseen: str | None = None


class WorkerEpoch:
    """One worker's pass through one epoch.

    Args:
        stream: makes batches and keys.
        dataset: the dataset to iterate over.
        worker: number that distinguishes its keys.
        epoch: the epoch.
        state: the position at which it starts.
    """

    def __init__(self, stream: WorkerStream, dataset: Any, worker: int, epoch: int, state: WorkerState) -> None:
        self._stream, self._worker, self._epoch, self._state = stream, worker, epoch, state
        self._dataset = dataset
        self._iterator: Any = None
        self._keys, mode = stream.keys(epoch, worker), stream.randomness
        unit = None if worker else "sample"  # one progress bar is enough
        self._reader = SeededReader(self._keys, mode, size=stream.size(), unit=unit)
        self._isolates = not stream.in_worker and mode != "off"
        self._position = state.batches * stream.size()
        self._canary = Canary.known(state.canary) if state.canary is not None and stream.compares else None
        self._warning: str | None = None
        self._unseen: str | None = None

    def run(self) -> Iterator[Item]:
        """Yield the items of the epoch."""
        batches, begun, ended = self._state.batches, False, False
        while not ended:
            point("worker.read")
            with self._guard():
                if not begun:
                    self._start()
                    begun = True
                began = perf_counter()
                drawn = self._draw()
                ended = len(drawn) < self._stream.size()
                state, iterator = self._own_states()
                owns = state is not None or iterator is not None
                first, last = self._canaries(drawn, ahead=owns)
                batch = self._batch(drawn)
            batches += batch is not None
            after = WorkerState(batches, ended, state, iterator, None if owns else last)
            warning, self._warning = self._warning, None
            seconds = perf_counter() - began
            yield Item(self._worker, after.as_dict(), batch or [], first, warning, seconds, self._unseen)

    def _start(self) -> None:
        """Go to the position of the worker's state."""
        self._tell_epoch()
        positioner = Positioner(self._reader, self._name, self._report)
        if self._stream.replays or not self._state.has_own:
            self._replay(positioner)
        elif self._state.batches:
            self._restore(positioner)
        else:  # between two epochs: the next element is unknown
            if self._state.state is not None:
                give_back(self._dataset, self._state.state, self._name())
            self._tell_epoch()  # again, as the restored state may contain the number of the old epoch
            self._reader.begin_or(self._open, self._open_again)

    def _replay(self, positioner: Positioner) -> None:
        found = positioner.replay(
            self._open_to_skip,
            self._position,
            self._canary,
            again=self._open_again,
            announced=self._state.has_own,
        )
        # A rank that reads another rank's stream knows the number of batches so far, but not the size of the last one.
        ended = self._state.elsewhere and self._position - found < self._stream.size()
        if found < self._position and not ended:
            raise self._too_few(found)

    def _restore(self, positioner: Positioner) -> None:
        """Restore the dataset's state before calling `iter` or after it, whichever continues at the right sample."""
        own, iterator = self._state.state, self._state.iterator
        orders = orders_of(self._dataset, own, iterator)
        ways = [partial(self._reader.begin, partial(self._open_at, order)) for order in orders]
        # A state is taken after each batch, so nothing may be read ahead of it.
        size, canary = self._stream.size(), self._canary
        if canary is not None and size > 1:
            canary.after = canary.after[: size - 1]
        again = canary is not None and len(canary.after) >= size
        positioner.restore(ways, self._position, canary, again=again)

    def _open_at(self, order: tuple[bool, bool]) -> Iterator[Any]:
        own, iterator = self._state.state, self._state.iterator
        self._iterator = iterate_at(
            self._dataset, lambda: iter(self._dataset), own, iterator, order=order, name=self._name()
        )
        return self._iterator  # type: ignore[no-any-return]  # it is one

    def _open(self) -> Iterator[Any]:
        self._iterator = iter(self._dataset)
        return self._iterator  # type: ignore[no-any-return]  # it is one

    def _open_to_skip(self) -> Iterator[Any]:
        """Open the dataset for a replay, and let it skip if it can."""
        self._iterator = iterator = iterate(self._dataset)
        return iterator

    def _open_again(self) -> Iterator[Any]:
        """Open the dataset again: between epochs, some datasets restore to the end of the old epoch."""
        self._tell_epoch()
        return self._open()

    def _own_states(self) -> tuple[Any, Any]:
        """Return the state of the dataset, and of its iterator if that is a separate object with a state."""
        if self._stream.replays:
            return None, None
        apart = self._iterator is not self._dataset
        return state_of(self._dataset), state_of(self._iterator) if apart else None

    def _tell_epoch(self) -> None:
        self._stream.tell_epoch(self._dataset, self._epoch)

    def _draw(self) -> list[Any]:
        try:
            return self._reader.take(self._position, self._stream.size())
        except Exception as error:
            note(error, f"sample {self._reader.position} of its stream")
            raise

    def _canaries(self, drawn: list[Any], *, ahead: bool) -> tuple[str | None, str | None]:
        """Return the digests of the first and of the last sample, as far as they are needed."""
        if not drawn or not self._stream.compares:
            return None, None
        canary = Canary(drawn[0] if ahead else drawn[-1])
        self._unseen = None if canary.unseen is None else shows_nothing(self._name(), canary.unseen)
        if not ahead:
            return None, canary.digest
        canary.after = [Canary(one).digest or "" for one in drawn[1:FEW]]
        return canary.text, None

    def _batch(self, drawn: list[Any]) -> list[Any] | None:
        if not drawn:
            return None
        if self._stream.randomness == "sample":
            reseed(self._keys.batch(self._position))
        batch: list[Any] | None = self._stream.batch(drawn)
        self._position += len(drawn)
        return batch

    def _guard(self) -> AbstractContextManager[None]:
        return isolated() if self._isolates else nullcontext()

    def _name(self) -> str:
        return f"{qualname_of(type(self._dataset))} in {self._stream.called} {self._worker}"

    def _report(self, message: str) -> None:
        if self._state.strict:
            raise StateMismatchError(message)
        self._warning = message + "\nContinuing because of strict=False."

    def _too_few(self, drawn: int) -> StateMismatchError:
        return StateMismatchError(
            f"{self._stream.called} {self._worker} yielded fewer samples than the original run had read from it.\n"
            f"  in the checkpoint: {self._position}\n  in this run:       {drawn}\n"
            "The data changed. Restore the data of the original run, or start a new run."
        )


def stamped(items: Iterator[Item | None]) -> Iterator[Any]:
    """Yield a worker's items, with the current time on those that have a batch."""
    for item in items:
        yield Answer(Made(item, 0.0, perf_counter())) if item is not None and item.batch else item


def state_of(thing: Any) -> Any:
    """Return a copy of the state of a dataset or an iterator; None if it has none."""
    methods = state_methods(thing)
    return None if methods is None else copy.deepcopy(methods[0]())
