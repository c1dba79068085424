"""Iterators over a Loader: thin, as the loader alone knows the place."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Generic

from resumable._leaving import Left, drivers_of, how_left
from resumable._loops import refuse_unpacking
from resumable._twins import is_over, tell_twins
from resumable.errors import DataError, UnsupportedError
from resumable.failpoints import point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Self

    from typing_extensions import TypeVar  # type checkers bring it along, and know its `default`

    from resumable._doubts import Doubt
    from resumable._leaving import Driver
    from resumable.loader import Loader

    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)

__all__ = ["BatchIterator", "Epoch", "EvaluationPass", "StepIterator", "T_co", "deliver"]

_EMPTY = 2  # epochs without a batch, one after the other, that no source may have


def deliver(loader: Loader[T_co], epoch: int) -> T_co:
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
    point("loader.handed", loader, batch)
    return batch


class _Leaves(Generic[T_co]):
    """An iterator that notes, when it is dropped, how its loop was left.

    Args:
        loader: delivers the batches.
    """

    def __init__(self, loader: Loader[T_co]) -> None:
        self._loader = loader
        self._doubt: Doubt | None = None
        self._drivers: tuple[Driver, ...] = ()

    def _refuse_driven(self) -> None:
        """Refuse to begin where something else delivers the batches of this loader.

        Raises:
            UnsupportedError: it was prepared, and the loop is over the loader itself.
        """
        if self._loader.driver:
            raise UnsupportedError(
                f"a loop is over a Loader that was given to {self._loader.driver}, and not over what that returned.\n"
                "Its batches would not count as trained on, and a resumed run would train on them again. Loop over "
                "what it returned: loader = prepare(accelerator, loader)."
            )

    def _ask(self) -> None:
        """Count the last batch, as the next one is asked for."""
        if self._doubt is not None:
            self._loader.progress.leave(self._doubt, Left.BY_ITSELF)
            self._doubt = None

    def _deliver(self, epoch: int, frame: FrameType) -> T_co:
        """Deliver the next batch to a frame."""
        progress = self._loader.progress
        try:
            batch = deliver(self._loader, epoch)
            doubt = self._doubt = progress.doubt
            if doubt is not None:
                doubt.drivers = self._drivers = drivers_of(frame, self._drivers)
        except StopIteration:
            raise
        except BaseException:
            progress.not_handed()
            raise
        else:
            return batch

    def __del__(self, _is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """Say how the loop was left; nothing where the interpreter ends, as its modules are emptied then."""
        doubt = getattr(self, "_doubt", None)
        if doubt is not None and not _is_ending():
            self._loader.progress.leave(doubt, how_left(doubt.drivers, sys._getframe().f_back))  # noqa: SLF001  # the loop


class BatchIterator(_Leaves[T_co]):
    """Batches up to the end of the epoch in which the loader stands at the first `next()`.

    All iterators of a loader share its place: each batch is delivered once. Where the place is set by
    `load_state_dict` or `seek` in the middle of a loop, the loop goes on from there.

    Args:
        loader: delivers the batches.
        epoch: stop unless the loader stands in this epoch; None for the epoch at the first `next()`, or the next one
            where that has no batch left.
    """

    def __init__(self, loader: Loader[T_co], epoch: int | None = None) -> None:
        super().__init__(loader)
        self._failed = loader.progress.failed
        self._only = epoch
        self._epoch = -1
        self._moves = -1
        self._start = 0  # position in the epoch at which it was begun
        self._over = False

    def __iter__(self) -> Iterator[T_co]:
        return self

    def __next__(self) -> T_co:
        self._ask()
        if self._over:
            raise StopIteration
        progress = self._loader.progress
        if self._moves != progress.moves:
            self._begin()
        at = progress.delivered
        if at.epoch != self._epoch:
            self._over = True
            raise StopIteration
        try:
            return self._deliver(self._epoch, sys._getframe(1))  # noqa: SLF001  # nothing else knows the loop
        except StopIteration:
            return self._after_end(nothing_left=at.position == self._start > 0)

    def _begin(self) -> None:
        self._refuse_driven()
        if self._failed is not None and self._failed is self._loader.progress.doubt:
            self._loader.progress.not_handed()  # the loop of that batch was given up for this one
        self._failed = None
        self._epoch = self._loader.progress.begin()
        tell_twins(self, self._loader)
        self._moves = self._loader.progress.moves
        self._start = self._loader.cursor.position
        if self._only is not None and self._epoch != self._only:
            self._epoch = -1

    def _after_end(self, *, nothing_left: bool) -> T_co:
        """End, or go on with the next epoch where the last batch had been delivered before this iterator began."""
        if self._only is None and nothing_left and self._loader.cursor.epoch != self._epoch:
            self._moves = -1
            return next(self)
        self._over = True
        is_over(self)
        raise StopIteration


class StepIterator(_Leaves[T_co]):
    """Batches of one epoch after the other, up to a number of them over the whole run.

    It has no place of its own: where the loader's place is set in the middle of a loop, the loop goes on from there.

    Args:
        loader: delivers the batches.
        total: stop where so many are in the weights, or wait to be acknowledged.
    """

    def __init__(self, loader: Loader[T_co], total: float) -> None:
        super().__init__(loader)
        self._total = total
        self._begun = self._over = False

    def __iter__(self) -> Iterator[T_co]:
        return self

    def __next__(self) -> T_co:
        self._ask()
        loader, empty = self._loader, 0
        if not self._begun:
            self._refuse_driven()
            loader.progress.begin()
            tell_twins(self, loader)
            self._begun = True
        while not self._over and loader.global_step + loader.progress.in_flight < self._total:
            at = loader.cursor
            try:
                return self._deliver(at.epoch, sys._getframe(1))  # noqa: SLF001  # nothing else knows the loop
            except StopIteration:
                loader.progress.turn_over(at.epoch)  # also where some of its batches wait to be acknowledged
                empty += at.step == 0
            if empty == _EMPTY:
                raise _no_batches(at.epoch)
        self._over = True
        is_over(self)
        raise StopIteration


def _no_batches(epoch: int) -> DataError:
    return DataError(
        f"epochs {epoch - 1} and {epoch} gave no batch at all, so that steps() would go on for ever.\n"
        "Look whether the data is where it should be, and whether an epoch has enough samples for one batch: what "
        'makes no whole one is left out where tail is "drop".'
    )


class EvaluationPass(Generic[T_co]):
    """Batches of one pass over a loader for evaluation: from the beginning, whatever was read before.

    The beginning is where the loader stood at the first `next()` of its first pass. The failpoint of these batches is
    not that of the others, as they are no part of the training.

    Args:
        loader: delivers the batches.
    """

    def __init__(self, loader: Loader[T_co]) -> None:
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
            raise UnsupportedError(
                "another loop over this loader for evaluation has begun since this one did.\n"
                "Both would take batches of one stream, and each would see a part. Finish one loop before the next, or "
                "wrap the source twice."
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
        """Let the workers of a pass end that was left by `break`: the next one begins again."""
        if self._epoch >= 0 and not self._over and self._moves == self._loader.progress.moves:
            self._loader.progress.let_go()


class Epoch(int, Generic[T_co]):
    """One epoch of `Loader.epochs`: iterate over it for its batches, and use it as its number wherever one is expected.

    Where it is copied or saved, it becomes a plain integer.

    Args:
        loader: delivers the batches.
        number: of the epoch, from 0.
    """

    _loader: Loader[T_co]

    def __new__(cls, loader: Loader[T_co], number: int) -> Self:
        """Make an integer that knows its loader."""
        epoch = super().__new__(cls, number)
        epoch._loader = loader
        return epoch

    @property
    def number(self) -> int:
        """The number as a plain integer."""
        return int(self)

    def __iter__(self) -> Iterator[T_co]:
        """Return an iterator over the batches of this epoch that are left.

        Raises:
            UnsupportedError: the epoch is unpacked into variables, as if it were a batch.
        """
        refuse_unpacking(sys._getframe(1), self.number)  # noqa: SLF001  # a loop cannot be told from it otherwise
        return BatchIterator(self._loader, self.number)

    def __len__(self) -> int:
        """Count the batches of the whole epoch, of which some may be done."""
        return self._loader.total_steps(self.number)

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (self.number,)

    def __repr__(self) -> str:
        return f"Epoch({self.number})"

    __str__ = int.__repr__
