"""SourceState: the position of a source with its own state, in one of two forms.

    at a place    a snapshot of the source, and the elements to skip after it
    left early    the loop left an epoch early, and nothing was saved since: the state of that epoch, and how far it was
                  read. To restore it, the source goes there, leaves, starts the cursor's epoch, and skips

Both record whether the source is known to have no elements left in the cursor's epoch (`ended`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from resumable._introspection import offers
from resumable._state.fields import check_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["AtPlace", "KnowsSnapshots", "LeftEarly", "SourceState", "parse_source"]

_DEEPEST = 200  # levels of nested states; this version writes at most two


@runtime_checkable
class KnowsSnapshots(Protocol):
    """A backend that can inspect its snapshots, such as a `DataLoader`'s, which count batches."""

    def own_fields(self, snapshot: Any) -> Any:
        """Return the part of a snapshot that belongs to the backend and not to a user, as plain values.

        The digest in states of earlier versions covers only this part.

        Raises:
            TypeError, ValueError, KeyError: it is damaged.
        """
        ...

    def elements_before(self, snapshot: Any) -> int:
        """Return how many elements of the epoch were yielded before a snapshot; it must match the cursor."""
        ...


@dataclass(frozen=True, slots=True)
class AtPlace:
    """A position with a snapshot, or a few elements after one.

    Args:
        snapshot: the source's own state.
        skip: elements of this epoch to skip after it.
        ended: the source has no elements left in this epoch.
    """

    snapshot: Any
    skip: int = 0
    ended: bool = False

    def replayed(self, within: Callable[[Any], int]) -> int:
        """Count the elements that are replayed to get here; `within` counts the elements up to a snapshot."""
        return self.skip + within(self.snapshot)

    def as_dict(self) -> dict[str, Any]:
        """Return fresh values."""
        return {"snapshot": copy.deepcopy(self.snapshot), "skip": self.skip, "ended": self.ended}


@dataclass(frozen=True, slots=True)
class LeftEarly:
    """A position in an epoch without a snapshot, after an epoch that was left early.

    Args:
        before: the source's state in the epoch that was left.
        epoch: the number of that epoch.
        position: how far it was read.
        skip: elements to skip after the start of the cursor's epoch.
        ended: the source has no elements left in the cursor's epoch.
    """

    before: SourceState
    epoch: int
    position: int
    skip: int = 0
    ended: bool = False

    def replayed(self, within: Callable[[Any], int]) -> int:
        """Count the elements that are replayed to get here, including the epoch that was left."""
        return self.skip + self.before.replayed(within)

    def as_dict(self) -> dict[str, Any]:
        """Return fresh values."""
        left = {"epoch": self.epoch, "position": self.position, "source_state": self.before.as_dict()}
        return {"left_early": left, "skip": self.skip, "ended": self.ended}


SourceState: TypeAlias = AtPlace | LeftEarly


def parse_source(values: Mapping[str, Any], epoch: int, position: int, backend: Any, *, deep: int = 0) -> SourceState:
    """Read what `as_dict` returned, and check it against the cursor.

    Args:
        values: the dict.
        epoch: of the cursor.
        position: of the cursor in that epoch.
        backend: of this run; it may know how many elements were yielded before a snapshot.
        deep: how many states this one is nested in.

    Raises:
        KeyError: a field is missing.
        ValueError: a field has a value that is impossible at this position.
        StateFormatError: a newer version wrote a field.
    """
    check_fields(values, ("left_early" if "left_early" in values else "snapshot", "skip", "ended"), "its source_state")
    skip, ended = _integer("skip", values["skip"], most=position), values["ended"]
    if type(ended) is not bool:
        raise ValueError(f"source_state.ended must be True or False, but it is {ended!r}")
    if "left_early" not in values:
        state = AtPlace(copy.deepcopy(values["snapshot"]), skip, ended)
        _check_count(state, position, backend)
        return state
    if skip != position:
        raise ValueError(f"source_state.skip must be {position}, the cursor's position, but it is {skip}")
    if deep >= _DEEPEST:
        raise ValueError(f"source_state has more than {_DEEPEST} nested states")
    left = values["left_early"]
    check_fields(left, ("epoch", "position", "source_state"), "its left_early")
    number = _integer("left_early.epoch", left["epoch"], most=epoch - 1)
    read = _integer("left_early.position", left["position"], least=1)
    before = parse_source(left["source_state"], number, read, backend, deep=deep + 1)
    return LeftEarly(before, number, read, skip, ended)


def _check_count(state: AtPlace, position: int, backend: Any) -> None:
    if (
        not offers(backend, KnowsSnapshots) or state.ended
    ):  # at the end of an epoch, the snapshot may already be at the start of the next one
        return
    given = backend.elements_before(state.snapshot)
    if given != position - state.skip:
        raise ValueError(
            f"source_state.snapshot was taken after {given} elements, but it belongs to position "
            f"{position - state.skip} of the epoch"
        )


def _integer(name: str, value: Any, *, least: int = 0, most: int | None = None) -> int:
    if type(value) is not int or value < least or (most is not None and value > most):
        limits = f"{least} or more" if most is None else f"{least} to {most}"
        raise ValueError(f"source_state.{name} must be an integer of {limits}, but it is {value!r}")
    return value
