"""What a user changes in the operations of a pipeline between epochs, such as the size of the images.

FFCV looks at the operations when an epoch begins. Plain public attributes are settings, but for those that an operation
assigns itself while it works: these are its state. What changed since `wrap` goes into the state of the loader.
"""

from __future__ import annotations

import dis
import types
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from ffcv.transforms import ModuleWrapper, ToDevice

from resumable.backends.ffcv.describe import operations_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ffcv.loader import Loader

__all__ = ["Settings"]

_WORK = ("accept_field", "accept_globals", "declare_shared_memory", "declare_state_and_memory", "forward",
         "generate_code", "generate_code_for_shared_state")  # fmt: skip
_NOT_OURS = {"device", "field", "memory_read", "metadata", "training"}  # the device is another one on each rank


class Settings:
    """The settings of all operations of a Loader.

    Args:
        loader: FFCV's, as it was given to `wrap`.
    """

    def __init__(self, loader: Loader) -> None:
        self._owners = dict(_settings(loader))
        self._at_wrap = {key: getattr(*place) for key, place in self._owners.items()}
        self._plain = {key: _plain(value) for key, value in self._at_wrap.items()}

    def changed(self) -> dict[str, Any]:
        """Return what differs from `wrap`, in plain values: by field, number of the operation, and attribute."""
        now = {key: _plain(getattr(owner, name, None)) for key, (owner, name) in self._owners.items()}
        return {key: value for key, value in now.items() if value is not _OTHER and value != self._plain[key]}

    def change(self, values: Mapping[str, Any]) -> None:
        """Set what `changed` returned, and everything else as it was at `wrap`."""
        now = self.changed()
        for key, (owner, name) in self._owners.items():
            if key in values:
                if now.get(key, self._plain[key]) != values[key]:
                    setattr(owner, name, _like(self._at_wrap[key], values[key]))
            elif key in now:
                setattr(owner, name, self._at_wrap[key])


def _settings(loader: Loader) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Yield where each setting is, by its key."""
    for field, number, operation in operations_of(loader):
        if isinstance(operation, ToDevice):
            continue
        if isinstance(operation, ModuleWrapper):
            owners = [(f"{field}.{number}.{inner}", one) for inner, one in enumerate(operation.module.modules())]
        else:
            owners = [(f"{field}.{number}", operation)]
        for prefix, owner in owners:
            own = _NOT_OURS | _assigned(type(owner))
            for name, value in vars(owner).items():
                if not name.startswith("_") and name not in own and _plain(value) is not _OTHER:
                    yield f"{prefix}.{name}", (owner, name)


def _assigned(kind: type) -> frozenset[str]:
    """Return the attributes that a class assigns while it works: by its methods for that, and those that they name."""
    found, waiting, seen = set[str](), list(_WORK), set[str]()
    while waiting:
        name = waiting.pop()
        method = getattr(kind, name, None)
        if name in seen or not isinstance(method, types.FunctionType):
            continue
        seen.add(name)
        for code in _codes(method.__code__):
            found.update(str(step.argval) for step in dis.get_instructions(code) if step.opname == "STORE_ATTR")
            waiting += code.co_names
    return frozenset(found)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


_OTHER = object()


def _plain(value: Any) -> Any:
    """Return a value as JSON gives it back; `_OTHER` for what is not plain."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (tuple, list)):
        values = [_plain(one) for one in value]
        return _OTHER if _OTHER in values else values
    plain = value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and isfinite(value))
    return value if plain else _OTHER


def _like(model: Any, value: Any) -> Any:
    """Return a plain value with tuples where the value at `wrap` had them."""
    if not isinstance(value, list):
        return value
    if isinstance(model, list):
        return [_like(model[0] if model else None, one) for one in value]
    return tuple(_like(None, one) for one in value)
