"""Gives a user's object its own state back, and says whose it is where that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from resumable._introspection import shorten
from resumable.errors import ResumableError, StateFormatError, StateMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["given_back", "without_state"]

T = TypeVar("T")


def given_back(restore: Callable[[], T], snapshot: Any) -> T:
    """Call what gives a source its snapshot back.

    Raises:
        StateFormatError: it cannot be one of this source's.
    """
    try:
        return restore()
    except ResumableError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise StateFormatError(
            f"the source could not take back the snapshot in the state: {type(error).__name__}: {error}.\n"
            f"  in the checkpoint: {shorten(snapshot)}\n"
            "Without it, the source would begin again. Load another checkpoint; or mend the source, if that is its "
            "own state."
        ) from error


def without_state(name: str) -> StateMismatchError:
    """Return what to raise for a snapshot where the source of this run has no state to put it into."""
    return StateMismatchError(
        f"the state has a snapshot of the source's own, and {name} has no state to put it into.\n"
        "  in the checkpoint: a snapshot\n  in this run:       a source that is replayed\n"
        "It would begin again. Give the source that the run was started with."
    )
