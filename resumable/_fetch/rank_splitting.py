"""What each rank reads of a global batch, and where an epoch ends on all ranks.

A rank reads everything, its own elements alone, or what the source deals to it. Of a source of unknown length, each
rank reads a step ahead, and posts that its source has come to its end before it delivers the last batch. A loop with a
collective in each step then makes sure that the others find that before they deliver another one. No rank waits for
the post of another one, so none can hang there.
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
    """What was drawn of a global batch.

    Args:
        own: the elements of this rank.
        start: place of the first of them in the global batch.
        total: elements of the global batch that there were.
        last: the last of them in a list; empty where there was none.
    """

    own: list[Any]
    start: int
    total: int
    last: list[Any]

    def canaries(self) -> list[Canary]:
        """Return the canaries of what was drawn."""
        return [Canary(element) for element in [*self.own, *self.last]]


class RankSplitter:
    """Draws global batches: whole ones, or of each no more than is needed, if the source can skip what is between.

    Args:
        backend: the source.
        dealt: it gives each rank its own elements alone.
        tries: compare whether the source skips to the element to which reading leads.
    """

    def __init__(self, backend: ReplayBackend, *, dealt: bool, tries: bool) -> None:
        self._backend, self._dealt, self._to_try = backend, dealt, tries
        self._ahead: tuple[SeededReader, Cursor, GlobalBatch | Exception] | None = None

    def look(self, reader: SeededReader, cursor: Cursor, size: int, world: World) -> int:
        """Return how many elements the global batch after a cursor has, by drawing it ahead; if that fails, all."""
        try:
            drawn: GlobalBatch | Exception = self._draw(reader, cursor, size, world)
        except Exception as error:  # noqa: BLE001  # of whatever type, it is raised where it belongs
            drawn = error
        self._ahead = reader, cursor, drawn
        return size if isinstance(drawn, Exception) else drawn.total

    def draw(self, reader: SeededReader, cursor: Cursor, size: int, world: World) -> GlobalBatch:
        """Draw the global batch after a cursor.

        Raises:
            BackendError: the source does not skip to where reading leads.
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
    """Draw the whole global batch, and return this rank's part of it."""
    drawn = reader.take(position, size)
    if not drawn:
        return GlobalBatch([], 0, 0, [])
    if dealt:  # one to each rank, but at the end of the epoch
        start = next((place for place, element in enumerate(drawn) if element is not ELSEWHERE), len(drawn))
        stop = start + 1
    else:
        start, stop = share(0, len(drawn), world)
    return GlobalBatch(drawn[start:stop], start, len(drawn), drawn[-1:])


def _own(reader: SeededReader, position: int, size: int, world: World) -> GlobalBatch:
    """Draw this rank's part of the global batch, and its last element, which shows that there is all of it.

    That element is the one of which every rank's state has the canary.
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
    """Return whether two ways to draw a global batch gave this rank the same."""
    pairs = zip(one.canaries(), other.canaries(), strict=False)
    return one[1:3] == other[1:3] and all(a.digest == b.digest for a, b in pairs)


_log = getLogger("resumable")
_AT_END = 2.0  # seconds in which ranks that end together come to it
_AT_BEGIN = 5.0  # seconds in which ranks that go on in the middle of an epoch have opened their streams
_DIFFERENT = (
    "the ranks disagree: the stream that they divide among them ends differently.\n{}\n"
    "Each of them reads all of it and keeps its share, so samples would be lost or doubled, and the rank that ends "
    "earlier would leave the others waiting. Let the source give the same elements on all ranks; or, if each rank has "
    "a stream of its own, give shard=False: then all end with the shortest one."
)


def find_end(options: Options, cursor: Cursor) -> AgreedEnd | None:
    """Return where the epoch ends on all ranks; None where there are no others, or they are not looked at."""
    watch, ranks = options.ranks.watch, options.find_world().size
    if watch is None or not watch.is_on or ranks == 1:
        return None
    return AgreedEnd(watch, options, ranks, cursor)


def left_early(state: SourceState | None, cursor: Cursor) -> LeftEarly | None:
    """Return a source's state after an epoch that ends at a place since another rank has no more."""
    return None if state is None or state.ended else LeftEarly(state, cursor.epoch, cursor.position)


class AgreedEnd:
    """The end of one epoch.

    Args:
        watch: of the loader.
        options: of the loader.
        ranks: how many there are.
        cursor: where the stream opens.
    """

    def __init__(self, watch: Watch, options: Options, ranks: int, cursor: Cursor) -> None:
        self._watch, self._ranks, self._state = watch, ranks, options.ranks
        self._own = options.shard is False  # so the shortest stream says where all end
        self._waits = not options.evaluation  # for a moment, for ranks that are at the same place
        self._epoch = cursor.epoch
        self._steps = 0
        self._known: int | None = None  # elements of the shared stream
        middle = cursor.step > 0 or self._state.catching_up
        self._opens = self._own and self._waits and middle  # in the run before, another rank may have ended here

    def looked_ahead(self, cursor: Cursor, ahead: int, *, more: bool) -> None:
        """Note what comes after a place.

        Args:
            cursor: the place, after the batch that is delivered next.
            ahead: how many elements were drawn that are after it.
            more: they make another batch.

        Raises:
            RankMismatchError: the stream is shared, and has ended differently on another rank.
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
        """Compare the last element of a step with that of the other ranks, at steps 1, 2, 4, ... of the stream.

        Raises:
            RankMismatchError: the stream is shared, and gives another element on another rank.
        """
        self._steps += 1
        if self._own or self._steps & (self._steps - 1):
            return
        digest = Canary(element).digest
        if digest is not None:
            fingerprint = {"element": f"element {cursor.position - 1} with the digest {digest}"}
            self._watch.compare(f"{self._epoch}/element {cursor.position}", fingerprint)

    def is_reached(self, cursor: Cursor, ahead: int) -> bool:
        """Return whether another rank's own stream had no batch after this place.

        Raises:
            RankMismatchError: the stream is shared, and has ended earlier on another rank.
        """
        if self._state.catching_up or self._known is not None or (end := self._watch.end(self._epoch)) is None:
            return False
        if not self._own:
            if end["elements"] < (least := cursor.position + ahead):
                self._disagree(end, f"{least} or more")
            return False
        if reached := cursor.step >= end["step"]:
            _log.info(
                "epoch %d ends after %d steps on all ranks, as rank %d has no more batches: the rest is not read",
                *(self._epoch, cursor.step, end["rank"]),
            )
        return bool(reached)

    def is_over(self) -> None:
        """Wait a moment for the others, whose epoch ends here, too, so that they find that while the store is there.

        Raises:
            RankError: one has not, or has failed.
        """
        if self._waits and not self._state.catching_up:
            self._watch.wait_for_others(f"{self._epoch}/ended", self._ranks, _AT_END)

    def _disagree(self, end: dict[str, int], own: str) -> None:
        lines = sorted([(end["rank"], f"{end['elements']}"), (self._watch.rank, own)])
        told = "\n".join(f"  rank {rank}: {count} elements in epoch {self._epoch}" for rank, count in lines)
        self._watch.disagree(_DIFFERENT.format(told))
