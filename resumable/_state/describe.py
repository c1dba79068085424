"""What a thing is that was taken for a state, in the width of a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resumable._introspection import shorten

__all__ = ["BY_DCP", "LEAF", "advise", "describe", "is_leaf", "is_state"]

LEAF = "states"  # under which a checkpoint of torch.distributed.checkpoint has the states of all ranks, as bytes
BY_DCP = (
    "If torch.distributed.checkpoint saved it: pass it loader.dcp() instead of the Loader, whose state it splits into "
    "parts of several ranks."
)
_DEEPEST = 4
_GIVE = "Give what loader.state_dict() returned; its field 'format' holds an integer."
_OTHERS = (
    ({"param_groups", "state"}, "It is an optimizer's state: did you mean the one of the loader? "),
    ({"python", "numpy"}, "It is a state of the generators, for resumable.rng.load_state_dict. "),
    ({"pytorch-lightning_version"}, "It is a checkpoint of Lightning's: give it to the Trainer as ckpt_path. "),
)


def describe(value: Any) -> str:
    """Say what a thing is: a mapping by its keys, anything else by its value."""
    if isinstance(value, Mapping) and value:
        return shorten(f"a {type(value).__name__} with the keys {', '.join(map(shorten, value))}", show=str)
    return shorten(value)


def is_state(value: Any) -> bool:
    """Return whether a thing looks like a state of a Loader, of whatever version."""
    return isinstance(value, Mapping) and type(value.get("format")) is int and "cursor" in value


def is_leaf(values: Any) -> bool:
    """Return whether a thing is what `Loader.dcp()` saves, and not a state."""
    return isinstance(values, Mapping) and set(values) == {LEAF} and isinstance(values[LEAF], bytes)


def advise(values: Any) -> str:
    """Say what to give instead: the state that is inside of it, where there is one."""
    if (path := _find(values)) is not None:
        return f"A state of a Loader is inside of it: did you mean load_state_dict(state{path})?"
    for names, advice in _OTHERS:
        if isinstance(values, Mapping) and names <= set(values):
            return advice + _GIVE
    return _GIVE


def _find(values: Any, deep: int = 0) -> str | None:
    """Return how to get to the first state of a Loader inside of something, as Python writes it."""
    if not isinstance(values, Mapping) or deep > _DEEPEST:
        return None
    for key, value in values.items():
        if isinstance(value, Mapping):
            if is_state(value) or is_leaf(value):
                return f"[{key!r}]"
            if (path := _find(value, deep + 1)) is not None:
                return f"[{key!r}]{path}"
    return None
