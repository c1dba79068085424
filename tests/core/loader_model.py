"""A model of a Loader: where it stands and which batch comes, by the rules that the documentation gives.

The batches are those of a loader that nobody disturbed. The model has a place and a list of batches in flight, and no
streams, snapshots or sources that could share an error with the library.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable.errors import ConfigurationError, UnsupportedError

sys.path.insert(0, str(Path(__file__).parent))
from fuzz_sources import MAKERS, plain

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

    def at(self, epoch: int, step: int) -> Place | None:
        """Return the place of a step, in a run from the beginning; None where there is none."""
        place = Place(epoch, -epoch * self._length % self._size if self._carries else 0)
        for _ in range(step):
            found = self.batch(place)
            if found is None:
                return None
            place = found[1]
        return place

    def total(self, epoch: int, here: Place) -> int:
        """Count the steps of an epoch in a run that stands somewhere."""
        place = here if epoch >= here.epoch else self.at(epoch, 0)
        assert place is not None  # there is a step 0
        while True:
            found = self.batch(place)
            if found is None and place.epoch == epoch:
                return place.step
            place = self.following(place) if found is None else found[1]


golden = functools.cache(Golden)


class Reading:
    """An iterator, over one epoch alone or from where the loader stands, and what is known of it."""

    def __init__(self, iterator: Iterator[Any], only: int | None = None) -> None:
        self.iterator, self.only = iterator, only
        self.epoch, self.moves, self.start, self.over = -1, -1, 0, False


class Counting:
    """A loop over `epochs(total)`: between two of its epochs, or in one that it gave."""

    def __init__(self, epochs: Iterator[Any], total: int) -> None:
        self.epochs, self.total = epochs, total
        self.given: tuple[int, int] | None = None  # number of the epoch, and the moves then
        self.over = False


class Model:
    """Where a loader stands."""

    def __init__(self, kind: str, acknowledged: Place = Place()) -> None:  # noqa: B008  # it cannot be changed
        self.golden, self.acknowledged = golden(kind), acknowledged
        self.in_flight: list[Place] = []
        self.moves = 0

    @property
    def delivered(self) -> Place:
        return self.in_flight[-1] if self.in_flight else self.acknowledged

    def go_to(self, place: Place) -> None:
        self.acknowledged, self.moves = place, self.moves + 1
        self.in_flight.clear()

    def end_epoch(self) -> None:
        if self.in_flight:
            raise ConfigurationError
        self.go_to(self.golden.following(self.acknowledged))

    def next_batch(self, reading: Reading, *, auto: bool) -> Any:
        """Return the batch that an iterator gives next.

        Raises:
            StopIteration: it is at its end.
        """
        if not reading.over and reading.moves != self.moves:
            self.in_flight.clear()
            reading.epoch, reading.moves, reading.start = (
                self.acknowledged.epoch,
                self.moves,
                self.acknowledged.position,
            )
        if reading.only not in {None, reading.epoch} or self.delivered.epoch != reading.epoch:
            reading.over = True
        if reading.over:
            raise StopIteration
        found = self.golden.batch(self.delivered)
        if found is not None:
            self.in_flight.append(found[1])
            if auto:
                self.acknowledged = self.in_flight.pop()
            return found[0]
        nothing_left = self.delivered.position == reading.start > 0
        if not self.in_flight:
            self.acknowledged = self.golden.following(self.acknowledged)
            if reading.only is None and nothing_left:
                reading.moves = -1
                return self.next_batch(reading, auto=auto)
        reading.over = True
        raise StopIteration

    def peek(self) -> Any:
        found = self.golden.batch(self.delivered)
        if found is None and self.in_flight:
            raise UnsupportedError
        found = found or self.golden.batch(self.golden.following(self.delivered))
        assert found is not None  # no epoch is empty
        return found[0]

    def next_epoch(self, counting: Counting) -> int:
        """Return the number of the epoch that a loop over epochs gives next."""
        if counting.over:
            raise StopIteration
        given, counting.given, counting.over = counting.given, None, True
        if given == (self.acknowledged.epoch, self.moves):
            self.end_epoch()
        if self.acknowledged.epoch >= counting.total:
            raise StopIteration
        counting.given, counting.over = (self.acknowledged.epoch, self.moves), False
        return self.acknowledged.epoch
