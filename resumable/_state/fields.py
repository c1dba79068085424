"""Rejects a field that only a newer version can have written: it could change the batches that follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable._distribution import UPGRADE
from resumable._introspection import shorten
from resumable.errors import StateFormatError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["check_fields", "newer"]


def check_fields(values: Mapping[str, Any], known: Collection[str], where: str = "the state") -> None:
    """Compare the fields of a state, or of a part of it, with the ones that this version knows.

    Args:
        values: the state or the part.
        known: the names of all fields that it may have.
        where: its name in messages.

    Raises:
        StateFormatError: it has others.
    """
    if unknown := [name for name in values if name not in known]:
        names = ", ".join(shorten(name, show=str) for name in unknown)
        raise newer(
            f"{where} has {names}, which this version does not know",
            "If your program added it, keep it next to the state instead of in it. ",
        )


def newer(reason: str, or_else: str = "") -> StateFormatError:
    """Return the error for a state of a newer version.

    Args:
        reason: what this version does not know.
        or_else: what to do if no newer version wrote it.
    """
    return StateFormatError(
        f"a newer version of resumable wrote the state: {reason}.\nNothing was loaded, because different batches could "
        f"follow. {or_else}Use the version that wrote it, or a newer one: {UPGRADE}"
    )
