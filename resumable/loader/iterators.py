"""Iterators over a Loader. They are thin: only the Loader knows the position.

One loop reads a Loader at a time. An iterator claims the Loader at its first `next()`. The newest one wins, and an
older one raises `LoopError` at its next `next()`. An iterator of `epochs()` or `steps()` is open from its first
`next()` until it is exhausted, closed or dropped:

    while `epochs()` is open    a loop over the Loader reads the rest of the current epoch, and stops there
    while `steps()` is open     any other loop raises `LoopError`
"""

from __future__ import annotations

import json
import math
import operator
import weakref
from collections import deque
from contextlib import contextmanager
from logging import getLogger
from typing import TYPE_CHECKING, Any, Generic, Protocol
from weakref import WeakKeyDictionary, WeakSet

from resumable._warn import warn
from resumable.errors import ConfigurationError, DataError, LoopError, LoopWarning, UnsupportedError
from resumable.failpoints import point

if TYPE_CHECKING:
    from resumable._order.cursor import Cursor
    from resumable.loader.progress import Progress


__all__ = [
    "BatchIterator",
    "Delivery",
    "Epoch",
    "EpochIterator",
    "EvaluationPass",
    "Loops",
    "StepIterator",
    "T_co",
    "check_total",
    "deliver",
    "is_over",
    "taken_away",
    "tell_twins_of",
    "twins_expected",
]


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self, TypeAlias

    from typing_extensions import TypeVar  # type checkers include it, and support its `default`

    T_co = TypeVar("T_co", covariant=True, default=Any)
    Reader: TypeAlias = "BatchIterator[Any] | StepIterator[Any]"
    Outer: TypeAlias = "EpochIterator[Any] | StepIterator[Any]"
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)


_log = getLogger("resumable")
_EMPTY = 2  # consecutive epochs without a batch before steps() raises
_EVALUATE = "To read the same data for evaluation, use loader.for_evaluation(), which has a separate position."


class LoopedLoader(Protocol[T_co]):
    """The parts of a Loader that loops use."""

    progress: Progress
    loops: Loops
    driver: str
    hint: str
    gone_through: int
    loaded: bool

    def __iter__(self) -> Iterator[T_co]:
        """Return an iterator over batches."""
        ...

    @property
    def seed(self) -> int:
        """Seed of the order."""
        ...

    @property
    def name(self) -> str:
        """Name of the stream."""
        ...

    @property
    def shuffles(self) -> bool:
        """Whether the order depends on the seed."""
        ...

    @property
    def cursor(self) -> Cursor:
        """Position after the last batch that was delivered."""
        ...

    def total_steps(self, epoch: int) -> int:
        """Count the batches of an epoch."""
        ...

    def end_epoch(self) -> None:
        """End the epoch."""
        ...

    def warn_of_counting(self) -> None:
        """Warn about a loop over a resumed Loader."""
        ...


def deliver(loader: LoopedLoader[T_co], epoch: int) -> T_co:
    """Deliver the next batch of an epoch; for iterators, and for integrations that drive a loader themselves.

    Raises:
        StopIteration: the epoch is over.
    """
    point("loader.fetch", loader)
    try:
        batch: T_co = loader.progress.next_batch(epoch)
    except StopIteration:
        if loader.progress.acknowledged.epoch > epoch:
            point("loader.epoch_end", loader)
        raise
    try:
        point("loader.handed", loader, batch)
    except BaseException:
        loader.progress.take_back(batch)  # the loop never sees it
        raise
    return batch


def taken_away(by: str, hint: str = "") -> LoopError:
    """Return the error of a loop over a Loader whose batches an integration delivers.

    Args:
        by: the name of the integration.
        hint: what to use instead of the loop; by default, the object that `by` returned.
    """
    hint = hint or f"To train, loop over the object that {by} returned."
    return LoopError(
        f"a loop over a Loader was started, but {by} delivers its batches.\n"
        "The loop would take batches away from the training run, and they would not count as trained on. "
        f"{hint} {_EVALUATE}"
    )


class Delivery(Generic[T_co]):
    """How the iterators of a Loader get its batches. An integration that drives a Loader passes a custom one.

    Args:
        loader: delivers the batches.
    """

    def __init__(self, loader: LoopedLoader[T_co]) -> None:
        self.loader = loader

    def check(self) -> None:
        """Check that a new loop may start.

        Raises:
            LoopError: an integration delivers the batches of this Loader.
        """
        if self.loader.driver:
            raise taken_away(self.loader.driver, self.loader.hint)

    def start(self) -> None:
        """Prepare for a new loop, which has replaced the previous one."""

    def read(self, epoch: int | None = None) -> Iterator[T_co]:
        """Return the iterator that a loop reads: over the batches of this epoch, or of the current one."""
        return BatchIterator(self, epoch)

    def settle(self) -> None:
        """Count the batches that are in the weights by now; called before each batch."""

    def leave(self, epoch: int) -> None:  # noqa: ARG002  # an integration may need it
        """End an epoch, which a loop over `epochs()` is done with.

        Raises:
            ConfigurationError: some of its batches are not acknowledged.
        """
        self.loader.end_epoch()

    def deliver(self, epoch: int) -> T_co:
        """Deliver the next batch of an epoch.

        Raises:
            StopIteration: the epoch is over.
        """
        return deliver(self.loader, epoch)


class Loops:
    """Which loops over a Loader are open. It holds them weakly: a loop whose iterator was dropped is over."""

    def __init__(self) -> None:
        self._reader: weakref.ref[Reader] | None = None  # the batch iterator that started last
        self._outer: weakref.ref[Outer] | None = None  # of epochs() or steps()

    def open(self, outer: Outer) -> None:
        """Start `epochs()` or `steps()`, replacing one that is open, such as one that an exception left open."""
        self._outer = weakref.ref(outer)
        self._reader = weakref.ref(outer) if isinstance(outer, StepIterator) else None

    @property
    def epoch(self) -> int | None:
        """Number of the epoch that the open `epochs()` returned last; None if none is open."""
        outer = None if self._outer is None else self._outer()
        return outer.number if isinstance(outer, EpochIterator) else None

    def end(self, outer: Outer) -> None:
        """End `epochs()` or `steps()`."""
        if self._outer is not None and self._outer() is outer:
            self._outer = None

    def start(self, reader: BatchIterator[Any], position: int) -> int | None:
        """Start a loop over a Loader or an epoch.

        Args:
            reader: its iterator.
            position: number of the Loader's current epoch.

        Returns:
            The only epoch that it may read; None if it may read all.

        Raises:
            LoopError: it would take batches away from the open loop, or its epoch is over.
        """
        outer = None if self._outer is None else self._outer()
        if isinstance(outer, StepIterator):
            raise LoopError(
                "a loop over a Loader was started while steps() is open.\n"
                "It would take batches away from the training run. If an exception left it open, call steps() again, "
                f"or close() its iterator. {_EVALUATE}"
            )
        current = None if outer is None else outer.number
        only = current if reader.only is None else reader.only
        if only is not None and position > only:
            raise LoopError(
                f"a loop over epoch {only} was started, but that epoch is over: the Loader is in epoch {position}.\n"
                + (
                    f"It would take epoch {position} away from the training run, which continues with the next epoch "
                    "of epochs(). "
                    if current is not None
                    else "It would get no batch. "
                )
                + _EVALUATE
            )
        self._reader = weakref.ref(reader)
        return None if only is None else reader.only if reader.only is not None else position

    def check(self, one: Reader | EpochIterator[Any]) -> None:
        """Check that no newer loop was started.

        Raises:
            LoopError: one was.
        """
        newest = self._outer if isinstance(one, EpochIterator) else self._reader
        if newest is None or newest() is not one:
            raise LoopError(
                "the next batch was requested from an iterator, but a newer loop over the same Loader was started.\n"
                "Each would get only some of the batches. Finish one loop before you start "
                f"the next. {_EVALUATE}"
            )


class BatchIterator(Generic[T_co]):
    """Batches up to the end of the epoch in which the loader is at the first `next()`.

    All iterators of a loader share its position: each batch is delivered once. If the position is set by
    `load_state_dict`, `seek` or `rewind` in the middle of a loop, the loop continues from there.

    Args:
        delivery: gets the batches.
            epoch: read only this one; None for the epoch at the first `next()`, or the next one if no batch is left.
    """

    def __init__(self, delivery: Delivery[T_co], epoch: int | None = None) -> None:
        self._delivery, self._loader = delivery, delivery.loader
        self.only = epoch
        self._epoch = -1
        self._moves = -1
        self._start = 0  # position in the epoch at which it was started
        self._started = self._over = False

    def __iter__(self) -> Iterator[T_co]:
        return self

    def __next__(self) -> T_co:
        if self._over:
            raise StopIteration
        progress = self._loader.progress
        if self._started:
            self._loader.loops.check(self)
            self._delivery.settle()
        else:
            self._claim()
        if self._moves != progress.moves:
            self._begin()
        at = progress.delivered
        if at.epoch != self._epoch:
            self._over = True
            raise StopIteration
        try:
            return self._delivery.deliver(self._epoch)
        except StopIteration:
            return self._after_end(nothing_left=at.position == self._start > 0)

    def _claim(self) -> None:
        loader = self._loader
        self._delivery.check()
        plain = self.only is None
        self.only = loader.loops.start(self, loader.progress.delivered.epoch)
        self._delivery.start()
        self._started = True
        if plain and self.only is None:
            loader.warn_of_counting()  # a loop within epochs() needs no warning

    def _begin(self) -> None:
        progress = self._loader.progress
        self._epoch = progress.begin()
        tell_twins(self, self._loader)
        self._moves = progress.moves
        self._start = progress.delivered.position
        if self.only is not None and self._epoch != self.only:
            self._epoch = -1

    def _after_end(self, *, nothing_left: bool) -> T_co:
        """End, or continue with the next epoch if the last batch had been delivered before this iterator started."""
        if self.only is None and nothing_left and self._loader.progress.delivered.epoch != self._epoch:
            self._moves = -1
            return next(self)
        self._over = True
        is_over(self)
        raise StopIteration


class StepIterator(Generic[T_co]):
    """Batches of consecutive epochs, up to a number of batches over the whole run.

    It has no separate position: if the loader's position is set in the middle of a loop, the loop continues there.

    Args:
        delivery: gets the batches.
        total: stop once this many batches are in the weights, or wait to be acknowledged.
    """

    def __init__(self, delivery: Delivery[T_co], total: float) -> None:
        self._delivery, self._loader = delivery, delivery.loader
        self._total = total
        self._started = self._over = False

    def __iter__(self) -> Iterator[T_co]:
        return self

    def __next__(self) -> T_co:
        if self._over:
            raise StopIteration
        loader, progress, empty = self._loader, self._loader.progress, 0
        if self._started:
            loader.loops.check(self)
            self._delivery.settle()
        else:
            self._delivery.check()
            progress.begin()  # first, because a loop that cannot start is not open
            loader.loops.open(self)
            self._delivery.start()
            self._started = True
            tell_twins(self, loader)
            if progress.steps_delivered >= self._total:
                _tell_complete(loader, "steps", self._total)
        while progress.steps_delivered < self._total:
            at = progress.delivered
            try:
                return self._delivery.deliver(at.epoch)
            except StopIteration:
                empty += at.step == 0
            if empty == _EMPTY:
                raise DataError(
                    f"epochs {at.epoch - 1} and {at.epoch} yielded no batch, so steps() would run forever.\n"
                    "Check that the data exists, and that an epoch has enough samples for one batch: "
                    'tail="drop" drops an incomplete batch.'
                )
        self.close()
        raise StopIteration

    def close(self) -> None:
        """End the loop: it delivers nothing from now on, and other loops may start."""
        self._over = True
        is_over(self)
        self._loader.loops.end(self)


class EpochIterator(Generic[T_co]):
    """The epochs up to the number `total`.

    Args:
        delivery: gets the batches.
        total: number of epochs of the whole run.
    """

    def __init__(self, delivery: Delivery[T_co], total: float) -> None:
        self._delivery, self._loader = delivery, delivery.loader
        self._total = total
        self._moves = -1
        self._started = self._over = False
        self.number = -1  # of the epoch that was returned last

    def __iter__(self) -> Iterator[Epoch[T_co]]:
        return self

    def __next__(self) -> Epoch[T_co]:
        if self._over:
            raise StopIteration
        loader, progress = self._loader, self._loader.progress
        if self._started:
            loader.loops.check(self)
            self._delivery.settle()
            # After a rollback and `break`, nothing was read since the position was set: the loop continues there.
            if progress.acknowledged.epoch <= self.number and (progress.moves == self._moves or progress.has_delivered):
                self._delivery.leave(self.number)
            loader.gone_through = max(loader.gone_through, self.number + 1)
        else:
            self._delivery.check()
            self._delivery.settle()
            loader.loops.open(self)
            self._started = True
            if progress.delivered.epoch >= self._total > 0 and loader.gone_through >= self._total:
                warn(_NO_EPOCH.format(self._total), LoopWarning)
            if progress.delivered.epoch >= self._total:
                _tell_complete(loader, "epochs", self._total)
        if progress.delivered.epoch >= self._total:
            self.close()
            raise StopIteration
        self._moves, self.number = progress.moves, progress.delivered.epoch
        return Epoch(self._delivery, self.number)

    def close(self) -> None:
        """End the loop: it returns no epoch from now on, and other loops may start. The position stays."""
        self._over = True
        self._loader.loops.end(self)


_NO_EPOCH = (
    "epochs({0}) has no epoch left, because an earlier call went through all {0}.\n"
    "The loop's body does not run. The number counts the epochs of the whole run, so one loop over epochs(n) trains "
    "all of them: remove the loop around it, or pass a larger number to continue."
)


def _tell_complete(loader: LoopedLoader[Any], what: str, total: float) -> None:
    """Log, once per loaded state, that a loop delivers nothing because everything is in the loaded state."""
    if total > 0 and loader.loaded and not loader.progress.has_delivered:
        loader.loaded = False
        _log.warning(
            "the loop over %s(%d) is complete: all %d %s are in the loaded state.\n"
            "It delivers no batch. Pass a larger number to train longer.",
            *(what, total, total, what),
        )


def check_total(what: str, total: object) -> float:
    """Check the number for `epochs` or `steps`, and return it: an integer, or infinity.

    Raises:
        ConfigurationError: it is neither, or below 0.
    """
    number: Any = total
    if not isinstance(number, float):
        try:
            number = operator.index(number)
        except TypeError:
            number = None
    if number is not None and number >= 0 and (number == math.inf or number == int(number)):
        return number  # type: ignore[no-any-return]  # an int or a float
    raise ConfigurationError(
        f"{what}() needs a whole number of 0 or more, but it was called with {total!r}.\n"
        f"It counts the {what} of the whole run, including those before a resume; math.inf means no end."
    )


class EvaluationPass(Generic[T_co]):
    """Batches of one pass over a loader for evaluation. Each pass starts at the same first batch.

    That is the batch that followed when the first pass started. These batches have a separate failpoint, because they
    are not part of training.

    Args:
        loader: delivers the batches.
    """

    def __init__(self, loader: LoopedLoader[T_co]) -> None:
        self._loader = loader
        self._epoch = -1
        self._moves = -1
        self._over = False

    def __iter__(self) -> Iterator[T_co]:
        return self

    def __next__(self) -> T_co:
        progress = self._loader.progress
        if self._over:
            raise StopIteration
        if self._epoch < 0:
            progress.begin_again()
            self._epoch, self._moves = progress.begin(), progress.moves
        if self._moves != progress.moves:
            raise LoopError(
                "the next batch was requested from a pass over a Loader for evaluation, but a newer pass was started.\n"
                "Each would get only some of the batches. Finish one loop before you start "
                "the next, or wrap the source twice."
            )
        try:
            batch: T_co = progress.next_batch(self._epoch)
        except StopIteration:
            self._over = True
            progress.begin_again()
            raise
        point("evaluation.handed")
        return batch

    def __del__(self) -> None:
        """Let the workers of a pass that was left with `break` end: the next pass starts over."""
        if self._epoch >= 0 and not self._over and self._moves == self._loader.progress.moves:
            self._loader.progress.let_go()


class Epoch(int, Generic[T_co]):
    """One epoch of `Loader.epochs`: iterate over it for its batches, and use it as a number.

    `copy` and `deepcopy` return a plain integer. It cannot be pickled: store `epoch.number` in a checkpoint.
    """

    _delivery: Delivery[T_co]

    def __new__(cls, delivery: Delivery[T_co], number: int) -> Self:
        """Make an integer that knows its loader.

        Args:
            delivery: gets the batches.
            number: of the epoch, from 0.
        """
        epoch = super().__new__(cls, number)
        epoch._delivery = delivery
        return epoch

    @property
    def number(self) -> int:
        """The number as a plain integer."""
        return int(self)

    def __iter__(self) -> Iterator[T_co]:
        """Return an iterator over the batches left in this epoch; it raises `LoopError` if the epoch is over.

        `enumerate(epoch)` always counts from 0. `epoch.enumerate()` continues the count after a resume.
        """
        return self._delivery.read(self.number)

    def enumerate(self, start: int = 0) -> Iterator[tuple[int, T_co]]:
        """Iterate over (index, batch), with the index of the batch in its epoch, which continues after a resume.

            for i, batch in epoch.enumerate():
                ...

        Args:
            start: index of the epoch's first batch.
        """
        return _Enumeration(iter(self), self._delivery.loader, start)

    def __len__(self) -> int:
        """Count all batches of the epoch, including those already read."""
        return self._delivery.loader.total_steps(self.number)

    def __copy__(self) -> int:
        return self.number

    def __deepcopy__(self, _: object) -> int:
        return self.number

    def __reduce_ex__(self, _: object) -> str:
        raise UnsupportedError(
            "an epoch of loader.epochs() cannot be pickled or saved.\n"
            "A checkpoint with this object could not be loaded with weights_only=True. Save `epoch.number`."
        )

    def __repr__(self) -> str:
        return f"Epoch({self.number})"

    __str__ = int.__repr__


class _Enumeration(Generic[T_co]):
    """Pairs of index and batch. It keeps no batch alive."""

    def __init__(self, batches: Iterator[T_co], loader: LoopedLoader[T_co], start: int) -> None:
        self._batches, self._loader = batches, loader
        self._before = start - 1

    def __iter__(self) -> Iterator[tuple[int, T_co]]:
        return self

    def __next__(self) -> tuple[int, T_co]:
        batch = next(self._batches)
        return self._before + self._loader.cursor.step, batch


# ------------------------------------------------------------------ twins
#
# Loaders whose samples have the same order and the same randomness, read together or one after another.

_MOST = 1000  # streams to remember
_loops: WeakKeyDictionary[Any, tuple[tuple[int, str], int]] = WeakKeyDictionary()  # open loops
_said: set[tuple[int, str] | str] = set()
_first: deque[str] = deque(maxlen=_MOST)  # streams that were read from the start of epoch 0
_looked: WeakSet[Progress] = WeakSet()
_expected = False  # a check reads the same stream again and again


@contextmanager
def twins_expected() -> Iterator[None]:
    """Do not warn about twins meanwhile; for checks, which read the same stream repeatedly."""
    global _expected  # noqa: PLW0603  # for all loaders of the process
    before, _expected = _expected, True
    try:
        yield
    finally:
        _expected = before


def tell_twins(loop: Any, loader: LoopedLoader[Any]) -> None:
    """Warn in the log if a second loader has the same order and the same randomness.

    It warns once per seed and name if two loaders are read together. It warns once per process if an earlier loader
    started with the same data, seed and name, which happens if a loader is created again for each epoch. Only loaders
    that shuffle with their seed are compared: only their order identifies a twin reliably.

    Args:
        loop: an iterator that starts; remembered as long as it exists.
        loader: the loader that it reads.
    """
    if _expected or not loader.shuffles:
        return
    stream, place = (loader.seed, loader.name), id(loader.progress)
    met = any(other == stream and where != place for other, where in _loops.values())
    _loops[loop] = stream, place
    if met:
        _tell(loader)
    _look_back(loader)


def _look_back(loader: LoopedLoader[Any]) -> None:
    """Compare a loader with earlier ones, once, if it starts at epoch 0: not after a load or seek()."""
    progress = loader.progress
    if progress in _looked:
        return
    _looked.add(progress)
    if progress.moves or progress.steps_delivered:
        return
    stream = json.dumps([str(progress.world), loader.seed, loader.name, progress.fingerprint()], default=repr)
    if stream in _first and "again" not in _said:
        _said.add("again")
        _log.warning(
            "this Loader has the same data and seed (%d) as an earlier one in this process%s, and also starts at epoch "
            "0: its order and augmentation are the same.\n"
            "If your script creates it again for each epoch, every epoch is the same. Keep one Loader for all epochs, "
            "or call loader.seek(epoch=...) on the new one. If it is a different stream, pass a name: "
            "wrap(..., name=...)",
            loader.seed,
            f", the same name ({loader.name!r})" if loader.name else "",
        )
    elif stream not in _first:
        _first.append(stream)


def tell_twins_of(loaders: Iterable[LoopedLoader[Any]]) -> None:
    """Warn about loaders whose batches are used together."""
    known: set[tuple[int, str]] = set()
    for loader in loaders:
        stream = loader.seed, loader.name
        if loader.shuffles and stream in known:
            _tell(loader)
        known |= {stream} if loader.shuffles else set()


def _tell(loader: LoopedLoader[Any]) -> None:
    stream = loader.seed, loader.name
    if stream in _said:
        return
    _said.add(stream)
    _log.warning(
        "two loaders with seed %d and %s are read together: at each step they have the same order and the same "
        "randomness.\nTheir batches are not independent samples. Pass a different name to each: wrap(..., name=...)",
        loader.seed,
        _named(loader),
    )


def _named(loader: LoopedLoader[Any]) -> str:
    return f"name {loader.name!r}" if loader.name else "no name"


def is_over(loop: Any) -> None:
    """Forget a loop that is over."""
    _loops.pop(loop, None)
