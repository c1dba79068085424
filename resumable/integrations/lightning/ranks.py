"""What each rank alone knows, in a checkpoint that rank 0 writes.

On a regular save the ranks exchange it. When the run is interrupted they do not: a rank that hangs or has died would
never answer, and all others would wait for it until the process group's time is over. Each leaves a note in the
process group's key-value store instead, and rank 0 looks for those of the same place for a moment. Of a rank that left
none, the checkpoint has what it said last (at least once per epoch); it goes on from there to the place of rank 0 by
itself.
"""

from __future__ import annotations

import pickle
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch import distributed

from resumable._ranks.store import find_store, is_initialized
from resumable._state import is_shared
from resumable.errors import UnsupportedError
from resumable.integrations.lightning.asked import Asked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Notes", "RankState", "check_ranks", "exchange", "is_shared"]

_PATIENCE = 2.0  # seconds in which a rank that is alive comes to its own save, too


@dataclass(frozen=True, slots=True)
class RankState:
    """What one rank alone knows.

    Args:
        loaders: states of its train loaders.
        generators: of its global generators.
        exact: of the place of the checkpoint, and not of an earlier one.
        asked: when the Trainer asked for the loaders of each of its loops.
    """

    loaders: Sequence[Mapping[str, Any]]
    generators: Mapping[str, Any]
    exact: bool = True
    asked: Mapping[str, Asked] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        asked = {loop: asked.as_dict() for loop, asked in self.asked.items()}
        loaders, generators = list(self.loaders), dict(self.generators)
        return {"loaders": loaders, "generators": generators, "exact": self.exact, "asked": asked}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RankState:
        """Make the state of `as_dict`'s values.

        Raises:
            KeyError: something is missing.
            TypeError: they are none.
        """
        asked = {loop: Asked(**asked) for loop, asked in values.get("asked", {}).items()}  # format 1 has none
        return cls(values["loaders"], values["generators"], exact=values["exact"], asked=asked)


def check_ranks(world_size: int) -> None:
    """Refuse several ranks that cannot exchange anything.

    Raises:
        UnsupportedError: they have no process group of `torch.distributed`.
    """
    if world_size > 1 and not is_initialized():
        raise UnsupportedError(
            f"the Trainer has {world_size} ranks and no process group of torch.distributed.\n"
            "The states of the other ranks could not be saved. Use a strategy that is based on it, such as "
            'strategy="ddp".'
        )


def exchange(own: RankState, world_size: int) -> list[RankState]:
    """Return what all ranks know. All of them have to call it."""
    if world_size == 1:
        return [own]
    everyone: list[Any] = [None] * world_size
    distributed.all_gather_object(everyone, own)
    return everyone


class Notes:
    """What the ranks leave for rank 0 in the key-value store of their process group, where no rank waits for another.

    Args:
        exchanges: how often they have exchanged what they know; tells the notes of several interruptions apart.
    """

    def __init__(self, exchanges: int) -> None:
        self._exchanges = exchanges

    def gather(self, known: Sequence[RankState], own: RankState, rank: int, place: str) -> list[RankState]:
        """Leave a note, and return what is known of all ranks.

        Args:
            known: what they said last.
            own: what this rank knows now.
            rank: of this process.
            place: where training stands; notes of other places are no use.
        """
        store = None if len(known) == 1 else find_store()
        if store is not None and rank:
            with suppress(RuntimeError):  # whoever hosts it may be gone
                store.set(self._key(place, rank), pickle.dumps(own))
        end = time.monotonic() + _PATIENCE
        found: list[RankState] = []
        for number, last in enumerate(known):
            note = None if rank or not number else self._find(store, place, number, end)
            found.append(own if number == rank else note or replace(last, exact=False))
        return found

    def _key(self, place: str, rank: int) -> str:
        return f"resumable/{self._exchanges}/{place}/{rank}"

    def _find(self, store: Any, place: str, rank: int, end: float) -> RankState | None:
        left = timedelta(seconds=max(end - time.monotonic(), 0.001))
        try:
            store.wait([self._key(place, rank)], left)
            note: RankState = pickle.loads(store.get(self._key(place, rank)))  # noqa: S301  # by a rank of this run
        except (AttributeError, RuntimeError):  # there is no store, or no note
            return None
        return note
