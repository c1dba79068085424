"""What is in an object of a class that is not known: its attributes, or what it gives to pickle."""

from __future__ import annotations

import copyreg
import sys
import types
from contextlib import suppress
from typing import Any

__all__ = ["given_to_pickle", "global_name", "keeps_state_in_c", "vars_of"]

_PROTOCOL = 4
_REDUCERS = "__reduce__", "__reduce_ex__"


def vars_of(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object, those in slots included; None where it can have none that Python shows."""
    try:
        found = dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        found = None
    for kind in type(value).__mro__:
        for slot in _slots(kind):
            found = {} if found is None else found
            with suppress(AttributeError):  # nothing is in it
                found[slot] = object.__getattribute__(value, slot)
    return found


def _slots(kind: type) -> list[str]:
    slots = vars(kind).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else [slot for slot in slots if slot not in {"__dict__", "__weakref__"}]
    private = f"_{kind.__name__.lstrip('_')}"
    return [f"{private}{name}" if name.startswith("__") and not name.endswith("__") else name for name in names]


def keeps_state_in_c(value: Any) -> bool:
    """Return whether a class written in C tells pickle what is in it: attributes are not all, as of `partial`."""
    kinds = type(value).__mro__[:-1]
    found = [vars(kind).get(name) for kind in kinds for name in _REDUCERS]
    return any(one is not None and not isinstance(one, types.FunctionType) for one in found)


def given_to_pickle(value: Any) -> tuple[Any, ...] | str | None:
    """Return what a pickle of an object would be made of; its name where it is a global one, None where it has none.

    The pickle itself is not the same for objects that are equal: what stands in it twice is written once.
    """
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        given = reduce(value) if reduce is not None else value.__reduce_ex__(_PROTOCOL)
    except Exception:  # noqa: BLE001  # it says so in its own way
        return None
    if isinstance(given, str):
        return f"{type(value).__module__}.{given}"
    make, args, *more = given
    state, items, pairs = (*more, None, None, None)[:3]
    return (make, args, state, list(items or ()), dict(pairs or ()))


def global_name(value: Any) -> str | None:
    """Return the name by which a class or function can be imported; None where there is none."""
    module, name = getattr(value, "__module__", None) or "builtins", getattr(value, "__qualname__", "")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(value, type):
        return f"{module}.{name}"
    return f"{module}.{name}" if name and found is value else None
