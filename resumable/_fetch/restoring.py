"""Gives a user's object its own state back, and says whose it is where that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from resumable._state import shorten
from resumable.errors import ResumableError, StateFormatError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["given_back"]

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
