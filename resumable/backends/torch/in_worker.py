"""What runs in the workers of an iterable-style `DataLoader`, and how far each worker is, as values that travel."""

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
from resumable._fetch.element_reader import SeededReader
from resumable._fetch.failures import note, sending
from resumable._fetch.own_state import state_methods
from resumable._fetch.positioning import Positioner, give_back, iterate, iterate_at, orders_of
from resumable._fetch.reader import no_end
from resumable._fetch.transport import Answer
from resumable._introspection import ask, qualname_of
from resumable._randomness.keys import SampleKeys, isolated, reseed
from resumable._stats import Made
from resumable.backends.torch.hugging_face import keep_own_epochs, mend_restoring
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
_MOST_BATCHES = 1 << 40  # of an epoch, as no run has


class WorkerStream(IterableDataset[Any]):
    """Yields an `Item` for every batch; the state that has ended may come without a batch.

    Args:
        loader: the user's; its dataset, batch size, `collate_fn` and `drop_last` are used.
        plan: where the first epoch is begun.
        options: seed, randomness, whether the dataset is replayed, and whether canaries are compared.
        stream: integers that set this rank's keys apart, where ranks have streams of their own.
    """

    called = "worker"

    def __init__(self, loader: DataLoader[Any], plan: StreamPlan, options: Options, stream: tuple[int, ...]) -> None:
        self.user_dataset: Any = loader.dataset
        self._batch_size, self._drop_last, self._collate = loader.batch_size, loader.drop_last, loader.collate_fn
        self._plan, self._seed, self._stream = plan, options.stream_seed, stream
        self.randomness = options.randomness or "sample"
        self.replays, self.compares = options.resume == "replay", options.compares_data
        self._teller = EpochTeller(loader)
        self._epochs_begun, self.in_worker = 0, False  # whether the global generators of this process may be changed
        self._next_state = WorkerState()  # where the next epoch begins, if not where the dataset stands by itself

    def __iter__(self) -> Iterator[Item]:
        """Begin an epoch: the planned one, later the ones after it."""
        info = get_worker_info()
        worker, epoch = (0 if info is None else info.id), self._plan.epoch + self._epochs_begun
        state = self._plan.states[worker] if self._epochs_begun == 0 else self._next_state
        if info is not None and self._epochs_begun == 0:
            keep_own_epochs()
            mend_restoring()
        self._epochs_begun, self._next_state, self.in_worker = self._epochs_begun + 1, WorkerState(), info is not None
        if state.ended:
            self._next_state = WorkerState(state=state.state)
            return iter(())
        running = WorkerEpoch(self, self.user_dataset, worker, epoch, state).run()
        return running if info is None else sending(stamped(running))

    def tell_epoch(self, dataset: Any, epoch: int) -> None:
        """Tell the dataset the epoch, if it wants to be told."""
        self._teller.tell(dataset, epoch)

    def size(self) -> int:
        """Samples of a full batch."""
        return self._batch_size or 1

    def batch(self, samples: list[Any]) -> Any:
        """Make a batch; None where it is incomplete and incomplete ones are dropped."""
        if self._drop_last and len(samples) < self.size():
            return None
        return [no_end("collate_fn", self._collate, samples if self._batch_size is not None else samples[0])]

    def keys(self, epoch: int, worker: int) -> SampleKeys:
        """Return the keys of a worker's samples."""
        return SampleKeys(self._seed, epoch, _STREAM, worker, *self._stream)


class EpochTeller:
    """Calls `set_epoch` in every worker: in one of them alone, and then in the others.

    A dataset may keep its epoch in memory that its workers share, and `set_epoch` may add to what is there. Two workers
    that did so at once would add twice. After the first of them, the others only write what is there already, so they
    need not wait for each other, and none of them disturbs one that has begun to read.

    Args:
        loader: the user's; the lock is of its workers' kind.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._epoch: Any = None
        if loader.num_workers > 1:  # asking for the context settles it for the whole process
            context: Any = loader.multiprocessing_context or get_context()
            self._epoch = context.Value("q", -1)

    def tell(self, dataset: Any, epoch: int) -> None:
        """Tell a dataset the epoch, if it wants to be told."""
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
    """Where an epoch is begun: the states of all workers, and the number of the one whose turn it is."""

    epoch: int
    turn: int
    states: list[WorkerState]


@dataclass(frozen=True, slots=True)
class WorkerState:
    """How far one worker is.

    Args:
        batches: batches of this epoch that were delivered.
        ended: it has no more in this epoch.
        state: the dataset's own state after them, where it has one.
        iterator: the state of the dataset's iterator after them, where that has one of its own.
        canary: digest of the sample that comes next, where there is a state; else of the last one that was delivered.
        strict: refuse another sample than that, instead of a warning.
        elsewhere: another rank read it, so that no more is known than how many batches it gave.
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
        """Whether there is a state of the dataset's own."""
        return self.state is not None or self.iterator is not None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; what is None is left out."""
        later = {"state": self.state, "iterator": self.iterator, "canary": self.canary}
        return {
            "batches": self.batches,
            "ended": self.ended,
            **{name: value for name, value in later.items() if value is not None},
            **({_ELSEWHERE: True} if self.elsewhere else {}),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> WorkerState:
        """Make a state of `as_dict`'s values.

        Raises:
            KeyError: a field is missing.
            ValueError: a field has a value that no worker can have had.
        """
        batches, ended = values["batches"], values["ended"]
        later = {name: values.get(name) for name in ("state", "iterator", "canary")}
        if type(batches) is not int or not 0 <= batches <= _MOST_BATCHES:
            raise ValueError(f"batches of a worker must be an integer of 0 to {_MOST_BATCHES}, but it is {batches!r}")
        if type(ended) is not bool or not isinstance(later["canary"], str | None):
            raise ValueError(f"ended and canary of a worker are no bool and no string: {ended!r}, {later['canary']!r}")
        elsewhere = values.get(_ELSEWHERE, False) is True
        return cls(batches, ended, **later, strict=not values.get(LENIENT, False), elsewhere=elsewhere)


class Item(NamedTuple):
    """What a worker sends.

    Args:
        worker: its number.
        state: how far it is after this, as `WorkerState.as_dict` has it.
        batch: the batch in a list; empty where there was none.
        first: digest of the batch's first sample, where the state before it is one of the dataset's own.
        warning: what to warn about.
        seconds: what reading the batch took, apart from going to the place of a state.
    """

    worker: int
    state: dict[str, Any]
    batch: list[Any]
    first: str | None = None
    warning: str | None = None
    seconds: float = 0.0


class WorkerEpoch:
    """One worker's way through one epoch.

    Args:
        stream: knows how batches are made, and the keys.
        dataset: what is iterated over.
        worker: number that sets its keys apart.
        epoch: the epoch.
        state: where it begins.
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

    def run(self) -> Iterator[Item]:
        """Yield its items."""
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
            yield Item(self._worker, after.as_dict(), batch or [], first, warning, perf_counter() - began)

    def _start(self) -> None:
        """Go to the place of the worker's state."""
        self._tell_epoch()
        positioner = Positioner(self._reader, self._name, self._report)
        if self._stream.replays or not self._state.has_own:
            self._replay(positioner)
        elif self._state.batches:
            self._restore(positioner)
        else:  # between two epochs, where no element is known that comes next
            if self._state.state is not None:
                give_back(self._dataset, self._state.state, self._name())
            self._tell_epoch()  # again, as the state of the old epoch's end may have brought its number back
            self._reader.begin_or(self._open, self._open_again)

    def _replay(self, positioner: Positioner) -> None:
        found = positioner.replay(
            self._open_to_skip,
            self._position,
            self._canary,
            again=self._open_again,
            announced=self._state.has_own,
        )
        # A rank that reads the stream of another one knows how many batches that gave, but not how small the last was.
        ended = self._state.elsewhere and self._position - found < self._stream.size()
        if found < self._position and not ended:
            raise self._too_few(found)

    def _restore(self, positioner: Positioner) -> None:
        """Give the dataset its state back before it is iterated, or after, whichever goes on where it was."""
        own, iterator = self._state.state, self._state.iterator
        orders = orders_of(self._dataset, own, iterator)
        ways = [partial(self._reader.begin, partial(self._open_at, order)) for order in orders]
        positioner.restore(ways, self._position, self._canary)

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
        """Open the dataset for a replay, and let it skip where it can."""
        self._iterator = iterator = iterate(self._dataset)
        return iterator

    def _open_again(self) -> Iterator[Any]:
        """Between epochs, some datasets come back at the end of the old epoch, not the beginning of the new one."""
        self._tell_epoch()
        return self._open()

    def _own_states(self) -> tuple[Any, Any]:
        """Return the state of the dataset, and of its iterator where that is another object with a state."""
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
        return (Canary(drawn[0]).digest, None) if ahead else (None, Canary(drawn[-1]).digest)

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
        self._warning = message + "\nGone on with because of strict=False."

    def _too_few(self, drawn: int) -> StateMismatchError:
        return StateMismatchError(
            f"{self._stream.called} {self._worker} gave fewer samples than the run that saved the state had read "
            "of it.\n"
            f"  in the checkpoint: {self._position}\n  in this run:       {drawn}\n"
            "The data changed. Give the data that the run was started with, or start a new run."
        )


def stamped(items: Iterator[Item | None]) -> Iterator[Any]:
    """Yield a worker's items, those with a batch as being made now."""
    for item in items:
        yield Answer(Made(item, 0.0, perf_counter())) if item is not None and item.batch else item


def state_of(thing: Any) -> Any:
    """Return a copy of the state of a dataset or an iterator, or None where it has none."""
    methods = state_methods(thing)
    return None if methods is None else copy.deepcopy(methods[0]())
