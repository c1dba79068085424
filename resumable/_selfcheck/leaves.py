"""Leaves: the values that a batch is made of, and what each is compared by.

Whatever a batch is, it is taken apart down to numbers, texts and arrays: containers by their elements, other objects by
their attributes. No method of a user's class says what is in it, as a `__repr__` may leave out what matters, and a
pickle need not be the same twice. What has neither is told, and not compared.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import logging
import pathlib
import random
import sys
import types
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable.testing.runs import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["has_rows", "leaves_of", "text_of"]

_SHOWN = 44
_DEEPEST = 32
_LARGEST = 1 << 256  # of numbers that are spelled out
_log = logging.getLogger("resumable")

# What says by its `repr` all that it is.
_PLAIN = (
    *(str, bytes, bytearray, int, float, complex, bool, type(None), type(...), range, slice, enum.Enum),
    *(dt.date, dt.time, dt.timedelta, dt.tzinfo, decimal.Decimal, fractions.Fraction),
    *(pathlib.PurePath, uuid.UUID, np.dtype, type),
)


class _Uncompared(str):
    """Says why a part is not compared."""

    __slots__ = ()


def leaves_of(batch: Any) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each part that has none itself: an array, or a plain value of Python."""
    told: set[str] = set()
    for path, leaf in _leaves(batch, "", ()):
        if isinstance(leaf, _Uncompared) and leaf not in told:
            told.add(leaf)
            where = f"the part {path} of a batch" if path else "a batch"
            _log.warning("%s is not compared: %s", where, leaf)
        yield path, leaf


def text_of(leaf: Any) -> str:
    """Return a short text that differs where a leaf does."""
    if isinstance(leaf, np.ndarray):
        shown = f"{leaf.dtype}{list(leaf.shape)}"
        if leaf.size == 1:
            return f"{shown} {leaf.reshape(-1)[0]!s}"
        return f"{shown} with the digest {digest(leaf)}"
    if isinstance(leaf, _Uncompared):
        return str(leaf)
    text = hex(leaf) if isinstance(leaf, int) and abs(leaf) > _LARGEST else repr(leaf)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}... with the digest {digest(text)}"


def has_rows(leaf: Any) -> bool:
    """Return whether a leaf may have a row for each sample."""
    return isinstance(leaf, np.ndarray) and leaf.ndim > 0


def _leaves(value: Any, path: str, above: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    try:
        value = _plain(value)
    except Exception as error:  # noqa: BLE001  # of whatever type: the user's class has its own idea of an array
        value = _Uncompared(f"{_name(value)} cannot be read as an array ({type(error).__name__}: {error})")
    if isinstance(value, (np.ndarray, *_PLAIN)):  # a text that says why it is not compared, too
        yield path, value
    elif id(value) in above:
        yield path, f"what holds it, {len(above) - above.index(id(value))} above"
    elif len(above) == _DEEPEST:
        yield path, _Uncompared(f"it lies {_DEEPEST} levels deep")
    elif isinstance(value, (set, frozenset)):
        yield path, f"{type(value).__name__} {sorted(map(_of_element, value))}"
    else:
        yield from _inside(value, path, (*above, id(value)))


def _inside(value: Any, path: str, above: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    empty = True
    for step, part in _parts(value):
        empty = False
        yield from _leaves(part, path + step, above)
    if empty:
        known = isinstance(value, (Sequence, Mapping)) or vars_of(value) is not None
        yield path, f"{_name(value)} with nothing in it" if known else _Uncompared(f"{_name(value)} has no attributes")


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Sequence):
        names = getattr(type(value), "_fields", None)
        for number, part in enumerate(value):
            yield (f".{names[number]}" if names else f"[{number}]"), part
    elif isinstance(value, Mapping) or (hasattr(type(value), "keys") and hasattr(type(value), "__getitem__")):
        for key in value.keys():  # noqa: SIM118  # it may be no dict
            yield f"[{key!r}]", value[key]
    else:
        for name, part in (vars_of(value) or {}).items():
            yield f".{name}", part


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


def _of_element(element: Any) -> str:
    """Return what the element of a set is compared by, as sets have no order."""
    return str([(path, text_of(leaf)) for path, leaf in _leaves(element, "", ())])


def _name(value: Any) -> str:
    return f"a value of {type(value).__module__}.{type(value).__qualname__}"


def _plain(value: Any) -> Any:
    """Return an array of what is one in some library, the state of a generator, and all else as it is."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_tensor(torch, value)
    if torch is not None and isinstance(value, torch.Generator):
        return value.get_state().numpy()
    for kind, read in _READERS:
        if isinstance(value, kind):
            return read(value)
    return _of_array(value) if any(hasattr(type(value), name) for name in _ARRAYS) else value


def _of_array(value: Any) -> Any:
    array = np.asarray(value)
    return [array.tolist()] if array.dtype.hasobject else array


def _of_code(value: Any) -> Any:
    return _Uncompared(f"{_name(value)} is no data")


_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, types.GeneratorType)
_ARRAYS = "__array__", "__array_interface__"
_READERS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (np.ndarray, _of_array),
    (memoryview, bytes),
    (_CODE, _of_code),
    (random.Random, random.Random.getstate),
    (np.random.Generator, lambda generator: generator.bit_generator.state),
    (np.random.RandomState, np.random.RandomState.get_state),
)


def _of_tensor(torch: Any, tensor: Any) -> Any:
    tensor = tensor.detach().cpu() if tensor.device.type != "meta" else tensor
    if tensor.device.type == "meta":
        return _Uncompared("a tensor on the device meta has no values")
    if tensor.is_nested:
        return list(tensor.unbind())
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    elif tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.resolve_conj().resolve_neg()
    try:
        return tensor.numpy()
    except TypeError:  # of a type that NumPy does not have, such as bfloat16
        return tensor.contiguous().view(torch.uint8).numpy()
