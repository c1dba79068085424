"""A model of a Loader: where it stands and which batch comes, by the rules that the documentation gives.

The batches are those of a loader that nobody disturbed. The model has a place, a list of batches in flight and the
loop that reads, and no streams, snapshots or sources that could share an error with the library.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from fuzz_sources import MAKERS, plain

from resumable.errors import ConfigurationError, LoopError

if TYPE_CHECKING:
    from collections.abc import Iterator

EPOCHS = 7  # after which a walk ends


class Place(NamedTuple):
    """A cursor, and what is in the weights there."""

    epoch: int = 0
    position: int = 0
    step: int = 0
    global_step: int = 0
    seen: int = 0


class Golden:
    """What an uninterrupted loader gives."""

    def __init__(self, kind: str) -> None:
        loader = MAKERS[kind]()
        self.sized, self._size = loader.is_sized, loader.global_batch_size
        self._carries, self._batches = kind == "list, carry", dict[tuple[int, int], tuple[Any, int]]()
        loader = MAKERS[kind](batch_size=1, tail="partial") if self._carries else loader
        for epoch in loader.epochs(EPOCHS + 2):
            position = 0
            for batch in epoch:
                self._batches[epoch, position] = plain(batch), loader.cursor.position
                position = loader.cursor.position
        self._length = position

    def batch(self, place: Place) -> tuple[Any, Place] | None:
        """Return the batch at a place and the place after it; None at an epoch's end."""
        epoch, position = place.epoch, place.position
        if self._carries:
            return None if position >= self._length else self._carried(place)
        if (epoch, position) not in self._batches:
            return None
        batch, after = self._batches[epoch, position]
        return batch, Place(epoch, after, place.step + 1, place.global_step + 1, place.seen + after - position)

    def _carried(self, place: Place) -> tuple[Any, Place]:
        epoch, position, step, steps, seen = place
        turns = [divmod(one, self._length) for one in range(position, position + self._size)]
        batch = [self._batches[epoch + laps, one][0][0] for laps, one in turns]
        return batch, Place(epoch, position + self._size, step + 1, steps + 1, seen + self._size)

    def following(self, place: Place) -> Place:
        begin = max(place.position - self._length, 0) if self._carries else 0
        return Place(place.epoch + 1, begin, 0, place.global_step, place.seen)

    def at(self, epoch: int, step: int, here: Place = Place()) -> Place | None:  # noqa: B008  # it cannot be changed
        """Return the place of a step, in a run that stands somewhere; None where there is none."""
        place = here if self._carries and (epoch, step) >= (here.epoch, here.step) else Place()
        while self._carries and place.epoch < epoch:
            found = self.batch(place)
            place = self.following(place) if found is None else found[1]
        place = place if self._carries else Place(epoch)
        for _ in range(step - place.step):
            found = self.batch(place)
            if found is None:
                return None
            place = found[1]
        return place

    def total(self, epoch: int, here: Place) -> int:
        """Count the steps of an epoch in a run that stands somewhere."""
        place = here if epoch >= here.epoch else self.at(epoch, 0, here)
        assert place is not None  # there is a step 0
        while True:
            found = self.batch(place)
            if found is None and place.epoch == epoch:
                return place.step
            place = self.following(place) if found is None else found[1]


golden = functools.cache(Golden)


class Reading:
    """An iterator over the batches of one epoch, or of the one in which the loader is."""

    def __init__(self, iterator: Iterator[Any], only: int | None = None) -> None:
        self.iterator, self.only = iterator, only
        self.epoch, self.moves, self.start = -1, -1, 0
        self.started = self.over = False


class Stepping:
    """An iterator of `steps(total)`."""

    def __init__(self, iterator: Iterator[Any], total: int) -> None:
        self.iterator, self.total = iterator, total
        self.started = self.over = False


class Counting:
    """An iterator of `epochs(total)`."""

    def __init__(self, epochs: Iterator[Any], total: int) -> None:
        self.epochs, self.total = epochs, total
        self.given = (-1, -1)  # number of the epoch, and the moves then
        self.started = self.over = False


class Model:
    """Where a loader is, and which loop reads it."""

    def __init__(self, kind: str, place: Place = Place(), *, auto: bool) -> None:  # noqa: B008  # it cannot be changed
        self.golden, self.auto = golden(kind), auto
        self.delivered = self.acknowledged = place
        self.in_flight: list[Place] = []
        self.before: Place | None = None  # the batch that was delivered last, unless the place was set since
        self.settled = False  # the next one was asked for
        self.reader: Reading | Stepping | None = None
        self.outer: Counting | Stepping | None = None
        self.moves = 0

    # ------------------------------------------------------------------ the place

    @property
    def after_an_exception(self) -> Place:
        """Where a state is that is taken while an exception is handled, which came up after the last delivery."""
        counts = not self.auto or self.before is None or self.settled
        return self.acknowledged if counts or self.before is None else self.before

    def go_to(self, place: Place) -> None:
        self.delivered = self.acknowledged = place
        self.moves, self.before = self.moves + 1, None
        self.in_flight.clear()

    def rewind(self) -> None:
        if self.auto and self.before is not None:
            self.go_to(self.before)
        elif self.in_flight:
            self.go_to(self.acknowledged)

    def end_epoch(self) -> None:
        if self.in_flight:
            raise ConfigurationError
        if isinstance(self.outer, Counting) and self.acknowledged.epoch > self.outer.given[0]:
            return  # it has ended by itself
        if self.delivered.epoch > self.acknowledged.epoch:
            self.acknowledged = self.delivered
        else:
            self.go_to(self.golden.following(self.acknowledged))

    def peek(self) -> Any:
        found = self.golden.batch(self.delivered) or self.golden.batch(self.golden.following(self.delivered))
        assert found is not None  # no epoch is empty
        return found[0]

    # ------------------------------------------------------------------ loops

    def deliver(self) -> Any:
        """Return the next batch of the epoch, or None at its end, which is gone past then."""
        self.settled, found = True, self.golden.batch(self.delivered)
        if found is None:
            self.delivered = self.golden.following(self.delivered)
            if not self.in_flight:
                self.acknowledged = self.delivered
            return None
        self.before, self.settled = self.delivered, False
        self.delivered = found[1]
        if self.auto:
            self.acknowledged = self.delivered
        else:
            self.in_flight.append(self.delivered)
        return found[0]

    def next_batch(self, reading: Reading) -> Any:
        if reading.over:
            raise StopIteration
        if not reading.started:
            self._start(reading)
        elif self.reader is not reading:
            raise LoopError
        if reading.moves != self.moves:
            reading.epoch, reading.moves, reading.start = self.delivered.epoch, self.moves, self.delivered.position
        at = self.delivered
        if at.epoch == reading.epoch and reading.only in {None, at.epoch}:
            if (found := self.deliver()) is not None:
                return found
            if reading.only is None and at.position == reading.start > 0:
                reading.moves = -1
                return self.next_batch(reading)
        reading.over = True
        raise StopIteration

    def _start(self, reading: Reading) -> None:
        if isinstance(self.outer, Stepping):
            raise LoopError
        only = reading.only if reading.only is not None or self.outer is None else self.outer.given[0]
        if only is not None and self.delivered.epoch > only:
            raise LoopError
        if only is not None and reading.only is None:
            reading.only = self.delivered.epoch
        reading.started, self.reader = True, reading

    def next_step(self, stepping: Stepping) -> Any:
        if stepping.over:
            raise StopIteration
        if not stepping.started:
            stepping.started = True
            self.reader = self.outer = stepping
        elif self.reader is not stepping:
            raise LoopError
        while self.delivered.global_step < stepping.total:
            if (found := self.deliver()) is not None:
                return found
        self.end(stepping)
        raise StopIteration

    def next_epoch(self, counting: Counting) -> int:
        if counting.over:
            raise StopIteration
        if not counting.started:
            counting.started, self.outer, self.reader = True, counting, None
        elif self.outer is not counting:
            raise LoopError
        elif self.acknowledged.epoch <= counting.given[0] and (
            self.moves == counting.given[1] or self.before is not None
        ):
            self.end_epoch()
        if self.delivered.epoch >= counting.total:
            self.end(counting)
            raise StopIteration
        counting.given = self.delivered.epoch, self.moves
        return self.delivered.epoch

    def end(self, outer: Counting | Stepping) -> None:
        """End `epochs()` or `steps()`: exhausted, closed or dropped."""
        outer.over = True
        if self.outer is outer:
            self.outer = None
