"""Divides global batches among the ranks, and finds where an epoch ends on all of them.

A rank reads everything, only its own elements, or what the source assigns to it. If the length of the source is
unknown, each rank reads one step ahead, and posts the end of its source before it delivers the last batch. In a loop
with a collective operation in each step, the others see the post before they deliver the next batch. No rank waits for
the post of a different one, so none can hang there.
"""

from __future__ import annotations

from logging import getLogger
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable._content import Canary
from resumable._fetch.positioning import skipped_elsewhere
from resumable._order.plan import share
from resumable._state import LeftEarly
from resumable.errors import BackendError
from resumable.protocols import ELSEWHERE

if TYPE_CHECKING:
    from resumable._fetch.element_reader import SeededReader
    from resumable._options import Options
    from resumable._order.cursor import Cursor
    from resumable._order.world import World
    from resumable._ranks import Watch
    from resumable._state import SourceState
    from resumable.protocols import ReplayBackend

__all__ = ["AgreedEnd", "GlobalBatch", "RankSplitter", "find_end", "left_early"]


class GlobalBatch(NamedTuple):
    """The elements that were read of a global batch.

    Args:
        own: the elements of this rank.
        start: position of the first of them in the global batch.
        total: how many elements the global batch has.
        last: its last element in a list, or an empty list.
    """

    own: list[Any]
    start: int
    total: int
    last: list[Any]

    def canaries(self) -> list[Canary]:
        """Return the canaries of the elements that were read."""
        return [Canary(element) for element in [*self.own, *self.last]]


class RankSplitter:
    """Reads global batches: completely, or only the needed elements if the source can skip the others.

    Args:
        backend: the source.
        dealt: it yields only a rank's own elements.
        tries: check whether `skip` leads to the same element as reading.
    """

    def __init__(self, backend: ReplayBackend, *, dealt: bool, tries: bool) -> None:
        self._backend, self._dealt, self._to_try = backend, dealt, tries
        self._ahead: tuple[SeededReader, Cursor, GlobalBatch | Exception] | None = None

    def look(self, reader: SeededReader, cursor: Cursor, size: int, world: World) -> int:
        """Return how many elements the next global batch has, by reading it ahead; if that fails, its full size."""
        try:
            drawn: GlobalBatch | Exception = self._draw(reader, cursor, size, world)
        except Exception as error:  # noqa: BLE001  # of any type, raised when the batch is read
            drawn = error
        self._ahead = reader, cursor, drawn
        return size if isinstance(drawn, Exception) else drawn.total

    def draw(self, reader: SeededReader, cursor: Cursor, size: int, world: World) -> GlobalBatch:
        """Read the global batch after a cursor.

        Raises:
            BackendError: `skip` does not lead to the same element as reading.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] is not reader or ahead[1] != cursor:
            return self._draw(reader, cursor, size, world)
        if isinstance(ahead[2], Exception):
            raise ahead[2]
        return ahead[2]

    def _draw(self, reader: SeededReader, cursor: Cursor, size: int, world: World) -> GlobalBatch:
        if world.size == 1 or self._dealt or not reader.strides:
            return _whole(reader, cursor.position, size, world, dealt=self._dealt)
        if cursor.position or not self._to_try:
            return _own(reader, cursor.position, size, world)
        whole = _whole(reader, 0, size, world, dealt=self._dealt)
        reader.close()
        reader.begin(lambda: self._backend.open(cursor.epoch))
        own = _own(reader, 0, size, world)
        if not _same(whole, own):
            name = str(self._backend.identity.get("source", self._backend.kind))
            raise BackendError(skipped_elsewhere(name, own.start or size - 1))
        self._to_try = False
        return own


def _whole(reader: SeededReader, position: int, size: int, world: World, *, dealt: bool) -> GlobalBatch:
    """Read the whole global batch, and return this rank's part of it."""
    drawn = reader.take(position, size)
    if not drawn:
        return GlobalBatch([], 0, 0, [])
    if dealt:  # one element per rank, except at the end of the epoch
        start = next((place for place, element in enumerate(drawn) if element is not ELSEWHERE), len(drawn))
        stop = start + 1
    else:
        start, stop = share(0, len(drawn), world)
    return GlobalBatch(drawn[start:stop], start, len(drawn), drawn[-1:])


def _own(reader: SeededReader, position: int, size: int, world: World) -> GlobalBatch:
    """Read this rank's part of the global batch, and its last element, which shows that the batch is complete.

    Every rank's state has the canary of that last element.
    """
    start, stop = share(0, size, world)
    reader.skip(position, start)
    own = reader.take(position + start, stop - start)
    if len(own) < stop - start:
        return GlobalBatch(own, start, start + len(own), own[-1:])
    if stop == size:
        return GlobalBatch(own, start, size, own[-1:])
    reader.skip(position + stop, size - stop - 1)
    last = reader.take(position + size - 1, 1)
    return GlobalBatch(own, start, size if last else stop, last)


def _same(one: GlobalBatch, other: GlobalBatch) -> bool:
    """Return whether two ways to read a global batch had the same result for this rank."""
    pairs = zip(one.canaries(), other.canaries(), strict=False)
    return one[1:3] == other[1:3] and all(a.digest == b.digest for a, b in pairs)


_log = getLogger("resumable")
_AT_END = 2.0  # seconds that ranks may take to arrive at a common end
_AT_BEGIN = 5.0  # seconds that ranks may take to open their streams in the middle of an epoch
_DIFFERENT = (
    "the ranks disagree: the stream that they divide ends at different positions.\n{}\n"
    "Each rank reads all of it and keeps its share, so samples would be lost or repeated, and the rank that ends "
    "earlier would leave the others waiting. Make the source yield the same elements on all ranks. If each rank has a "
    "separate stream, pass shard=False: then all end with the shortest one."
)


def find_end(options: Options, cursor: Cursor) -> AgreedEnd | None:
    """Return the `AgreedEnd` of the epoch; None if there are no other ranks, or they are not compared."""
    watch, ranks = options.ranks.watch, options.find_world().size
    if watch is None or not watch.is_on or ranks == 1:
        return None
    return AgreedEnd(watch, options, ranks, cursor)


def left_early(state: SourceState | None, cursor: Cursor) -> LeftEarly | None:
    """Return a source's state after an epoch that ended early because a different rank has run out of elements."""
    return None if state is None or state.ended else LeftEarly(state, cursor.epoch, cursor.position)


class AgreedEnd:
    """The end of one epoch.

    Args:
        watch: of the loader.
        options: of the loader.
        ranks: how many there are.
        cursor: the position at which the stream opens.
    """

    def __init__(self, watch: Watch, options: Options, ranks: int, cursor: Cursor) -> None:
        self._watch, self._ranks, self._state = watch, ranks, options.ranks
        self._own = options.shard is False  # then all ranks end with the shortest stream
        self._waits = not options.evaluation  # briefly, for ranks at the same position
        self._epoch = cursor.epoch
        self._steps = 0
        self._known: int | None = None  # elements of the shared stream
        middle = cursor.step > 0 or self._state.catching_up
        self._opens = self._own and self._waits and middle  # a different rank may have ended here in the previous run

    def looked_ahead(self, cursor: Cursor, ahead: int, *, more: bool) -> None:
        """Note what follows a position.

        Args:
            cursor: the position after the next batch to be delivered.
            ahead: how many elements after it have been read.
            more: they make another batch.

        Raises:
            RankMismatchError: the stream is shared, and a different rank has reached a different end.
        """
        if not more and self._own:
            self._watch.ended(self._epoch, {"step": cursor.step})
        elif not more and self._known is None:
            self._known = cursor.position + ahead
            end = self._watch.ended(self._epoch, {"elements": self._known})
            if end["elements"] != self._known:
                self._disagree(end, f"{self._known}")
        if self._opens and not self._state.catching_up:
            self._opens = False
            self._watch.wait_for_others(f"{self._epoch}/opened", self._ranks, _AT_BEGIN)

    def compare_element(self, cursor: Cursor, element: Any) -> None:
        """Compare the last element of a step with the other ranks, at steps 1, 2, 4, ... of the stream.

        Raises:
            RankMismatchError: the stream is shared, and yields a different element on a different rank.
        """
        self._steps += 1
        if self._own or self._steps & (self._steps - 1):
            return
        digest = Canary(element).digest
        if digest is not None:
            fingerprint = {"element": f"element {cursor.position - 1} with the digest {digest}"}
            self._watch.compare(f"{self._epoch}/element {cursor.position}", fingerprint)

    def is_reached(self, cursor: Cursor, ahead: int) -> bool:
        """Return whether a different rank's own stream had no batch after this position.

        Raises:
            RankMismatchError: the stream is shared, and has ended earlier on a different rank.
        """
        if self._state.catching_up or self._known is not None or (end := self._watch.end(self._epoch)) is None:
            return False
        if not self._own:
            if end["elements"] < (least := cursor.position + ahead):
                self._disagree(end, f"{least} or more")
            return False
        if reached := cursor.step >= end["step"]:
            _log.info(
                "epoch %d ends after %d steps on all ranks, because rank %d has no batches left: the rest is not read",
                *(self._epoch, cursor.step, end["rank"]),
            )
        return bool(reached)

    def is_over(self) -> None:
        """Wait briefly for the ranks whose epoch also ends here, so they can read that while the store exists.

        Raises:
            RankError: a rank has not ended here, or has failed.
        """
        if self._waits and not self._state.catching_up:
            self._watch.wait_for_others(f"{self._epoch}/ended", self._ranks, _AT_END)

    def _disagree(self, end: dict[str, int], own: str) -> None:
        lines = sorted([(end["rank"], f"{end['elements']}"), (self._watch.rank, own)])
        told = "\n".join(f"  rank {rank}: {count} elements in epoch {self._epoch}" for rank, count in lines)
        self._watch.disagree(_DIFFERENT.format(told))
