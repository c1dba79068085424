"""What a value is: a leaf, or a container of parts. Whatever a value is, the answer is the same in every process."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import pathlib
import random
import re
import sys
import types
import uuid
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable._introspection import in_words
from resumable._parts.arrays import Array, of_numpy, of_tensor
from resumable._parts.objects import given_to_pickle, global_name, keeps_state_in_c, vars_of
from resumable._parts.texts import Text, Uncompared, is_exact, name_of, short, step

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Whole", "take"]


class Whole(NamedTuple):
    """A container that is one leaf, as its parts have no names.

    Args:
        name: what the text of it begins with.
        parts: of any kind.
        ordered: whether their order counts.
    """

    name: str
    parts: tuple[Any, ...]
    ordered: bool = True


_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")
_ARRAYS = "__array__", "__array_interface__"
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, types.GeneratorType, type)
_BASES = (bool, int, float, complex, str, bytes)
_SHOWN = (  # what says by its `repr` all that it is
    *(dt.date, dt.time, dt.timedelta, dt.tzinfo, decimal.Decimal, fractions.Fraction),
    *(pathlib.PurePath, uuid.UUID, np.dtype, type(NotImplemented)),
)


def take(value: Any) -> Any:
    """Return the parts of a container as a list of steps and values, and anything else as a leaf.

    A leaf is a number, a text or bytes of Python's own, an `Array`, or a `Text` that stands for the value.
    """
    if is_exact(value):
        return value
    try:
        return _reader_of(type(value))(value)  # type: ignore[arg-type]  # classes are hashable, or raise
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001  # of whatever type: a class has its own idea of what is in it
        why = _ADDRESS.sub("", f"({in_words(error)})")
        return Uncompared(f"{name_of(value)} cannot be read {why}")


@lru_cache(1024)
def _reader_of(kind: type) -> Callable[[Any], Any]:
    for known, read in (*_READERS, *_of_torch()):
        if issubclass(kind, known):
            return read
    if callable(getattr(kind, "state_dict", None)):
        return lambda value: take(value.state_dict())
    if any(hasattr(kind, name) for name in _ARRAYS):
        return lambda value: _of_numpy(np.asarray(value))
    if issubclass(kind, Sequence):
        return _of_sequence
    mapping = issubclass(kind, Mapping) or (hasattr(kind, "keys") and hasattr(kind, "__getitem__"))
    return _of_mapping if mapping else _of_object


def _of_torch() -> tuple[tuple[Any, Callable[[Any], Any]], ...]:
    torch = sys.modules.get("torch")
    if torch is None:
        return ()
    generator = lambda value: Array("generator", value.get_state().numpy())  # noqa: E731
    return (torch.Tensor, lambda value: _of_read(of_tensor(torch, value))), (torch.Generator, generator)


def _of_read(value: Any) -> Any:
    """Return what a reader of arrays gave: an array, parts, or why there is nothing."""
    if isinstance(value, str):
        return Uncompared(value)
    return value if isinstance(value, Array) else take(value)


def _of_numpy(value: Any) -> Any:
    return _of_read(of_numpy(value))


def _of_dict(value: dict[Any, Any]) -> Any:
    parts = [(step(key), part) for key, part in dict.items(value)]
    parts.sort(key=itemgetter(0))
    return parts or Text("{}")


def _of_mapping(value: Any) -> Any:
    return _of_dict({key: value[key] for key in value.keys()})  # noqa: SIM118  # it may be no dict


def _of_sequence(value: Any) -> Any:
    if names := getattr(type(value), "_fields", None):
        return [(step(name), part) for name, part in zip(names, value, strict=True)]
    return [(str(number), part) for number, part in enumerate(value)] or Text("[]")


def _of_object(value: Any) -> Any:
    attributes = None if keeps_state_in_c(value) else vars_of(value)
    if attributes is not None:
        return [(step(name), part) for name, part in attributes.items()] or Text(f"{name_of(value)} with nothing in it")
    given = given_to_pickle(value)
    if given is None:
        return Uncompared(f"{name_of(value)} has no attributes and cannot be pickled")
    return Text(short(given)) if isinstance(given, str) else Whole(type(value).__qualname__, given)


def _of_shown(value: Any) -> Any:
    text = repr(value)
    return _of_object(value) if _ADDRESS.search(text) else Text(short(text))


def _of_code(value: Any) -> Any:
    if isinstance(value, types.MethodType):
        return [("self", value.__self__), ("function", value.__func__)]
    name = global_name(value)
    return Uncompared(f"{name_of(value)} is no data") if name is None else Text(short(name))


def _of_enum(value: enum.Enum) -> Any:
    return Text(short(f"{type(value).__qualname__}.{value.name}"))


def _of_base(value: Any) -> Any:
    """Return the number or text that a subclass is made of, whatever its methods say."""
    kind: Any = next(kind for kind in _BASES if isinstance(value, kind))
    if kind is str:
        return str.__str__(value)
    return bytes.__getitem__(value, slice(None)) if kind is bytes else kind.__pos__(value)


def _of_set(value: Any) -> Any:
    return Whole(f"set of {len(value)}", tuple(value), ordered=False)


def _of_random(value: random.Random) -> Any:
    version, words, gauss = random.Random.getstate(value)
    return [("version", version), ("words", np.array(words, np.uint32)), ("gauss", gauss)]


_READERS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (dict, _of_dict),
    ((list, tuple), _of_sequence),
    ((np.ndarray, np.generic), _of_numpy),
    (enum.Enum, _of_enum),
    (_BASES, _of_base),
    ((bytearray, memoryview), bytes),
    (_SHOWN, _of_shown),
    (slice, lambda value: [("start", value.start), ("stop", value.stop), ("step", value.step)]),
    (_CODE, _of_code),
    ((set, frozenset), _of_set),
    (random.Random, _of_random),
    (np.random.Generator, lambda generator: take(generator.bit_generator)),
    (np.random.BitGenerator, lambda generator: take(generator.state)),
    (np.random.RandomState, lambda generator: take(generator.get_state(legacy=False))),
)
