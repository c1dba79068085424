"""The state of a Loader: its format, how it is written and read, and whether it belongs to a loader."""

from __future__ import annotations

from resumable._state.compare import (
    agree_on_batch,
    brought_along,
    check_intact,
    check_position,
    check_remembered,
    check_same,
)
from resumable._state.fields import check_fields, newer
from resumable._state.schema import (
    FORMAT,
    LEAF,
    MOST_STARTS,
    Journal,
    Mark,
    Resize,
    State,
    damaged,
    is_leaf,
    is_shared,
    is_state,
    parse,
    without_settings,
)
from resumable._state.source import AtPlace, LeftEarly, SourceState

__all__ = [
    "FORMAT",
    "LEAF",
    "MOST_STARTS",
    "AtPlace",
    "Journal",
    "LeftEarly",
    "Mark",
    "Resize",
    "SourceState",
    "State",
    "agree_on_batch",
    "brought_along",
    "check_fields",
    "check_intact",
    "check_position",
    "check_remembered",
    "check_same",
    "damaged",
    "is_leaf",
    "is_shared",
    "is_state",
    "newer",
    "parse",
    "without_settings",
]
