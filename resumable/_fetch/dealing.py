"""What each rank draws of a global batch: everything, its own elements alone, or what the source deals to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from resumable._fetch.positioning import skipped_elsewhere
from resumable._order.plan import share
from resumable._state import Canary
from resumable.errors import BackendError
from resumable.protocols import ELSEWHERE

if TYPE_CHECKING:
    from resumable._fetch.keyed_draws import KeyedDraws
    from resumable._order.cursor import Cursor
    from resumable._order.world import World
    from resumable.protocols import ReplayBackend

__all__ = ["Dealer", "Round"]


class Round(NamedTuple):
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


class Dealer:
    """Draws global batches: whole ones, or of each no more than is needed, if the source can skip what is between.

    Args:
        backend: the source.
        dealt: it gives each rank its own elements alone.
        tries: compare whether the source skips to the element to which reading leads.
    """

    def __init__(self, backend: ReplayBackend, *, dealt: bool, tries: bool) -> None:
        self._backend, self._dealt, self._to_try = backend, dealt, tries
        self._ahead: tuple[KeyedDraws, Cursor, Round | Exception] | None = None

    def look(self, draws: KeyedDraws, cursor: Cursor, size: int, world: World) -> int:
        """Return how many elements the global batch after a cursor has, by drawing it ahead; if that fails, all."""
        try:
            drawn: Round | Exception = self._draw(draws, cursor, size, world)
        except Exception as error:  # noqa: BLE001  # of whatever type, it is raised where it belongs
            drawn = error
        self._ahead = draws, cursor, drawn
        return size if isinstance(drawn, Exception) else drawn.total

    def draw(self, draws: KeyedDraws, cursor: Cursor, size: int, world: World) -> Round:
        """Draw the global batch after a cursor.

        Raises:
            BackendError: the source does not skip to where reading leads.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] is not draws or ahead[1] != cursor:
            return self._draw(draws, cursor, size, world)
        if isinstance(ahead[2], Exception):
            raise ahead[2]
        return ahead[2]

    def _draw(self, draws: KeyedDraws, cursor: Cursor, size: int, world: World) -> Round:
        if world.size == 1 or self._dealt or not draws.strides:
            return _whole(draws, cursor.position, size, world, dealt=self._dealt)
        if cursor.position or not self._to_try:
            return _own(draws, cursor.position, size, world)
        whole = _whole(draws, 0, size, world, dealt=self._dealt)
        draws.close()
        draws.begin(lambda: self._backend.open(cursor.epoch))
        own = _own(draws, 0, size, world)
        if not _same(whole, own):
            name = str(self._backend.identity.get("source", self._backend.kind))
            raise BackendError(skipped_elsewhere(name, own.start or size - 1))
        self._to_try = False
        return own


def _whole(draws: KeyedDraws, position: int, size: int, world: World, *, dealt: bool) -> Round:
    """Draw the whole global batch, and return this rank's part of it."""
    drawn = draws.take(position, size)
    if not drawn:
        return Round([], 0, 0, [])
    if dealt:  # one to each rank, but at the end of the epoch
        start = next((place for place, element in enumerate(drawn) if element is not ELSEWHERE), len(drawn))
        stop = start + 1
    else:
        start, stop = share(0, len(drawn), world)
    return Round(drawn[start:stop], start, len(drawn), drawn[-1:])


def _own(draws: KeyedDraws, position: int, size: int, world: World) -> Round:
    """Draw this rank's part of the global batch, and its last element, which shows that there is all of it.

    That element is the one of which every rank's state has the canary.
    """
    start, stop = share(0, size, world)
    draws.skip(position, start)
    own = draws.take(position + start, stop - start)
    if len(own) < stop - start:
        return Round(own, start, start + len(own), own[-1:])
    if stop == size:
        return Round(own, start, size, own[-1:])
    draws.skip(position + stop, size - stop - 1)
    last = draws.take(position + size - 1, 1)
    return Round(own, start, size if last else stop, last)


def _same(one: Round, other: Round) -> bool:
    """Return whether two ways to draw a global batch gave this rank the same."""
    pairs = zip(one.canaries(), other.canaries(), strict=False)
    return one[1:3] == other[1:3] and all(a.digest == b.digest for a, b in pairs)
