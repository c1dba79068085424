"""What an indexed source remembers from sample to sample, as a dataset with a `state_dict` read in this process.

The place alone does not bring that back, so it goes with the place into the state: as it was after the last batch, or,
between two epochs, as it is now. A source that stands at a mark by itself is left alone.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeAlias

from resumable._fetch.restoring import given_back
from resumable._state import AtPlace

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from resumable._state import SourceState

__all__ = ["Follower", "OwnState", "state_methods"]

OwnState: TypeAlias = "tuple[Callable[[], Any], Callable[[Any], Any]]"

_METHODS = (("state_dict", "load_state_dict"), ("get_state", "set_state"))


def state_methods(thing: Any) -> OwnState | None:
    """Return the methods that get and set a thing's state, or None where it has none."""
    for get, put in _METHODS:
        if callable(getattr(thing, get, None)) and callable(getattr(thing, put, None)):
            return getattr(thing, get), getattr(thing, put)
    return None


class Follower:
    """Knows what a source remembers at the place where it stands, and what it remembered after the last batch.

    Args:
        own: get and set it.
    """

    def __init__(self, own: OwnState) -> None:
        self._get, self._set = own
        self._last: AtPlace | None = None
        self._stands = True  # nothing was read since

    def state(self) -> AtPlace:
        """Return what the source remembers now; where a batch has failed since the last one, what it did after that."""
        if self._stands or self._last is None:
            self._last = self._taken()
        return self._last

    def now(self, source: SourceState | None) -> SourceState | None:
        """Return a state again, as a user may have changed what the source remembers while it stood there."""
        return self._taken() if self._stands and source is self._last else source

    def go_to(self, source: SourceState | None) -> None:
        """Make the source remember what a state says; without one, go on with what it remembers now.

        Raises:
            StateFormatError: it cannot take that back.
        """
        if not isinstance(source, AtPlace):
            self._last = self._taken()
        elif source is not self._last or not self._stands:
            snapshot, before = copy.deepcopy(source.snapshot), self._taken()
            try:
                given_back(lambda: self._set(snapshot), source.snapshot)
            except Exception:
                self._set(before.snapshot)  # what was half taken is undone
                raise
            self._last = source
        self._stands = True

    def follow(self, batches: Iterator[Any]) -> Generator[Any]:
        """Yield the batches, and keep what the source remembers after each."""
        self._stands = False
        for batch in batches:
            self._last, self._stands = self._taken(), True
            yield batch
            self._stands = False
        self._stands = True  # it ended without another sample

    def _taken(self) -> AtPlace:
        return AtPlace(copy.deepcopy(self._get()))
