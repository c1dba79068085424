"""Finds the generators that a source has of its own, as `self.rng = numpy.random.default_rng(0)` in a transform.

What is looked at is what the source is made of: attributes, elements of containers, what functions are bound to, close
over or have as defaults, and what functions and methods take by name from the module that they are in. No code of the
source is called. A generator has a path, as `dataset.transform.steps[1].rng`, which is the same in every process.
"""

from __future__ import annotations

import random
import sys
import types
from collections import deque
from functools import partial
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = ["Place", "find_generators", "is_generator"]

_MOST = 5000  # objects that are looked at, the nearest first
_EACH = 64  # elements of a container that are looked at; a list of samples is longer
_OURS = __name__.partition(".")[0]
_LIBRARIES = frozenset({*sys.stdlib_module_names, "numpy", "torch"}) - {"__main__"}  # have none, or the global ones
_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, memoryview, range, slice, type),
    *(np.ndarray, np.generic, np.dtype, types.ModuleType, types.CodeType, types.BuiltinFunctionType),
)
_METHODS = types.FunctionType, staticmethod, classmethod, property
_DESCRIPTORS = types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType
_NUMPY = np.random.Generator, np.random.RandomState
_GLOBAL: Any = random.getstate.__self__, np.random.get_state.__self__  # type: ignore[attr-defined]  # methods of these


_known: WeakKeyDictionary[type, list[Place]] = WeakKeyDictionary()


class Place(NamedTuple):
    """Where something is.

    Args:
        path: from a root, for messages, and to tell it from others.
        get: returns what is there now; None where nothing is any more.
    """

    path: str
    get: Callable[[], Any]


def find_generators(roots: Mapping[str, Any]) -> list[Place]:
    """Find generators; of one that is in several places, the one that is nearest to a root.

    Args:
        roots: what is looked into, by the names with which paths begin.
    """
    return list(_Search().run(_there(name, root) for name, root in roots.items()))


class _Search:
    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}  # held, so that no other thing gets the number of one
        self._classes: set[type] = set()

    def run(self, roots: Iterable[Place]) -> Iterator[Place]:
        waiting = deque(roots)
        while waiting and len(self._seen) < _MOST:
            place = waiting.popleft()
            thing = place.get()
            if issubclass(type(thing), _PLAIN) or id(thing) in self._seen:
                continue
            self._seen[id(thing)] = thing
            if is_generator(thing):
                yield place
            else:
                waiting.extend(self._inside(thing, place.path))

    def _inside(self, thing: Any, path: str) -> Iterator[Place]:
        kind = type(thing)
        if kind is types.FunctionType:
            return _of_function(thing, path)
        if kind is types.MethodType:
            return iter((_there(path, thing.__self__), _there(path, thing.__func__)))
        if issubclass(kind, partial):
            inside = {"": thing.func, ".args": thing.args, ".keywords": thing.keywords}
            return (_there(f"{path}{name}", part) for name, part in inside.items())
        elements = _elements(thing, path)
        return elements if _is_of_library(kind) else chain(elements, _attributes(thing, path), self._of_class(kind))

    def _of_class(self, kind: type) -> Iterator[Place]:
        """Yield what a class and its bases have, and what their methods use of their modules."""
        for base in kind.__mro__:
            if base not in self._classes:
                self._classes.add(base)
                found = _known.get(base) or list(_of_one_class(base))
                if "<locals>" not in base.__qualname__:  # what is found may hold the class, which a module does anyway
                    _known[base] = found
                yield from found


def _of_one_class(base: type) -> Iterator[Place]:
    if _is_of_library(base) or base.__module__.partition(".")[0] == _OURS:
        return
    for name, value in list(vars(base).items()):
        path = f"{base.__qualname__}.{name}"
        if not isinstance(value, (*_METHODS, *_DESCRIPTORS)):
            yield Place(path, partial(base.__dict__.get, name))
        for function in (value, getattr(value, "__func__", None), getattr(value, "fget", None)):
            if type(function) is types.FunctionType:  # most methods close over nothing but their class
                yield from [_there(path, function)] if function.__closure__ else _of_module(function)


def is_generator(thing: Any) -> bool:
    """Return whether a thing is a generator of random numbers that can be seeded, and none of the global ones."""
    kind = type(thing)
    if issubclass(kind, random.Random):
        return not issubclass(kind, random.SystemRandom) and thing is not _GLOBAL[0]
    if issubclass(kind, _NUMPY):
        return thing is not _GLOBAL[1]
    torch = sys.modules.get("torch")
    if torch is None or not issubclass(kind, torch.Generator):
        return False
    return thing.device.type == "cpu" and thing is not torch.default_generator


def _is_of_library(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _LIBRARIES and not _is_container(kind)


def _is_container(kind: type) -> bool:
    """Return whether a class of torch holds what users made, as a Subset or a Sequential does."""
    return kind.__module__.startswith(("torch.utils.data", "torch.nn.modules"))


def _elements(thing: Any, path: str) -> Iterator[Place]:
    kind = type(thing)
    if issubclass(kind, dict):
        for key in list(dict.keys(thing))[:_EACH]:
            yield Place(f"{path}[{key!r}]", partial(dict.get, thing, key))
    elif issubclass(kind, (list, tuple, deque)):
        for number in range(min(len(thing), _EACH)):
            yield Place(f"{path}[{number}]", partial(_element, thing, number))


def _attributes(thing: Any, path: str) -> Iterator[Place]:
    """Yield the attributes of an object. Those of this package's own classes, whose names may change, have no name."""
    name_of = "{path}" if type(thing).__module__.partition(".")[0] == _OURS else "{path}.{name}"
    try:
        attributes = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        attributes = {}
    for name in list(attributes):
        yield Place(name_of.format(path=path, name=name), partial(dict.get, attributes, name))
    for base in type(thing).__mro__:
        for name, value in list(vars(base).items()) if "__slots__" in vars(base) else ():
            if type(value) is types.MemberDescriptorType:
                yield Place(name_of.format(path=path, name=name), partial(_slot, value, thing))


def _of_function(function: types.FunctionType, path: str) -> Iterator[Place]:
    if str(function.__globals__.get("__name__")).partition(".")[0] in _LIBRARIES:
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield Place(f"{path}.{name}", partial(_of_cell, cell))
    yield _there(f"{path}.defaults", function.__defaults__)
    yield _there(f"{path}.defaults", function.__kwdefaults__)
    yield _there(path, vars(function))  # what it was decorated with
    yield from _of_module(function)


def _of_module(function: types.FunctionType) -> Iterator[Place]:
    """Yield what a function takes by name from the module that it is in, but no classes and no functions of others."""
    scope = function.__globals__
    module = PurePath(function.__code__.co_filename).stem  # the same for a script and for a module that is imported
    for name in _names(function.__code__):
        value = scope.get(name)
        if type(value) is not types.FunctionType or value.__globals__ is scope:
            yield Place(f"{module}.{name}", partial(scope.get, name))


def _names(code: types.CodeType) -> list[str]:
    inner = (_names(one) for one in code.co_consts if type(one) is types.CodeType)
    return [*code.co_names, *chain.from_iterable(inner)]


def _there(path: str, thing: Any) -> Place:
    return Place(path, lambda: thing)


def _element(things: Any, number: int) -> Any:
    return things[number] if number < len(things) else None


def _slot(descriptor: types.MemberDescriptorType, thing: Any) -> Any:
    try:
        return descriptor.__get__(thing)
    except AttributeError:
        return None


def _of_cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None
