"""The journal of a state: what was changed in the middle of a run, as [[epoch, position], change], oldest first.

change                          means
{"global_batch": [was, is]}     samples per step over all ranks, before the place and from there on
{"in_force": settings}          the epoch of the cursor began with these settings of the backend; its rest goes on so
{"set": settings}               these are set at the cursor, for the epochs after it, unless they are set again

Settings are what differs from the backend as it was wrapped; there are none where a backend has none.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resumable._order.cursor import Cursor

__all__ = ["Journal", "Resize", "without_settings"]


class Resize(NamedTuple):
    """Another global batch from a place on."""

    epoch: int
    position: int
    was: int
    now: int


class Journal(NamedTuple):
    """What a state says of changes.

    Args:
        resizes: changes of the global batch, oldest first.
        in_force: settings with which the cursor's epoch began; None if it did not begin yet.
        settings: those that are set at the cursor; None where the backend has no settings.
    """

    resizes: tuple[Resize, ...] = ()
    in_force: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] | None = None

    def as_list(self, cursor: Cursor) -> list[list[Any]]:
        """Return the journal of a place, as fresh plain values."""
        entries: list[list[Any]] = [
            [[one.epoch, one.position], {"global_batch": [one.was, one.now]}] for one in self.resizes
        ]
        if self.in_force is not None:
            entries.append([[cursor.epoch, 0], {"in_force": copy.deepcopy(dict(self.in_force))}])
        if self.settings is not None:
            entries.append([[cursor.epoch, cursor.position], {"set": copy.deepcopy(dict(self.settings))}])
        return entries

    @classmethod
    def parse(cls, values: Any, cursor: Cursor) -> Journal:
        """Read the journal of a state that was taken at a cursor.

        Raises:
            ValueError: it is none, or has an entry that this version does not know, or settings of a later place.
        """
        resizes, settings = [], dict[str, Any]()
        for (epoch, position), change in values:
            if not all(type(number) is int and number >= 0 for number in (epoch, position)):
                raise ValueError(f"the journal has an entry at {[epoch, position]}, which is no place")
            (name,) = change
            if name == "global_batch":
                was, now = change[name]
                if not all(type(number) is int and number > 0 for number in (was, now)):
                    raise ValueError(f"the journal has a global batch that is none: {change}")
                resizes.append(Resize(epoch, position, was, now))
            elif name in {"in_force", "set"}:
                if (epoch, position) > (cursor.epoch, cursor.position):
                    raise ValueError(f"the journal has settings of {[epoch, position]}, after the cursor")
                settings[name] = copy.deepcopy(dict(change[name]))
            else:
                raise ValueError(f"the journal has an entry that this version does not know: {change}")
        return cls(tuple(resizes), settings.get("in_force"), settings.get("set"))


def without_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state that leaves settings as they are; for going back to a place within a run."""
    return {**values, "journal": [entry for entry in values["journal"] if "global_batch" in entry[1]], "digest": None}
