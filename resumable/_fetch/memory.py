"""Notes the memory of an object: its attributes and all attributes inside it, as short texts that can be compared.

Four kinds of things are noted, each under its path from the object:

    value        a number, a text, or a small array
    order        a list, tuple or array of plain values
    generator    the state of a random generator
    iterator     an iterator, and how much of it is left, if it tells

Sets, and dicts of more than 64 entries, are not noted: they are usually caches, which may grow without any effect. The
search has limits, runs no code of the object, and never raises.
"""

from __future__ import annotations

import copy
import re
import types
from collections import deque
from functools import partial
from operator import length_hint
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from resumable._content import Canary, digest_of
from resumable._content.elements import spread
from resumable._introspection import (
    ask,
    attributes_of,
    has,
    is_exactly,
    members_of,
    mro_of,
    package_of,
    qualname_of,
    shorten,
    survive,
)
from resumable._randomness.own_generators import is_generator, state_of

__all__ = ["Memory", "Note", "copied", "memory_of"]

_PLAIN = (int, float, complex, bool, type(None), str, bytes)
_NAMED = (*_PLAIN, type(Path()), type(PurePath()))
_MOST, _NOTES, _DEEPEST, _ENTRIES, _SAMPLED, _LONGEST = 4000, 400, 8, 64, 1024, 100_000
_MOST_BYTES = 1 << 26
_CODE = (type, types.ModuleType, types.BuiltinFunctionType, types.CodeType)
# Errors that were kept say nothing about the next element, and notes and tracebacks are added to them.
_CAUGHT = (BaseException, types.TracebackType, types.FrameType)
# Streams of Hugging Face keep counters of the last epoch, and reset them before the next. Ray Data keeps numbers and
# times of its executions, and reads in other processes.
_UNSEARCHED = frozenset({"threading", "_thread", "logging", "datasets", "ray"})
_LIBRARIES = frozenset({"torch", "numpy", "threading", "_thread", "logging", "multiprocessing", "resumable"})


class Note(NamedTuple):
    """A note about one thing.

    Args:
        kind: "value", "order", "generator" or "iterator".
        text: describes it, and is equal if the things are.
        parts: of an order, a digest of its parts without their order.
    """

    kind: str
    text: str
    parts: str = ""


class Memory(NamedTuple):
    """The memory of an object.

    Args:
        notes: about each thing, under its path.
        copies: whether a copy of the object would be small and have no side effects.
        shared: whether it has memory that processes share, which a copy would not separate.
        places: the dict or list that holds a plain value, and its key there, under the value's path.
    """

    notes: dict[str, Note]
    copies: bool
    shared: bool
    places: dict[str, tuple[Any, Any]]

    def values(self) -> str:
        """Return a digest of everything but generators and iterators, without the order of lists.

        Two processes may list the same files in different orders.
        """
        static = [(path, note) for path, note in self.notes.items() if note.kind in _STATIC]
        return digest_of(sorted((_PLACE.sub("[]", path), note.parts or note.text) for path, note in static))


_STATIC = {"value", "order"}
_PLACE = re.compile(r"\[\d+\]")  # in a list


def memory_of(root: Any) -> Memory:
    """Return what an object, a function or a partial remembers."""
    search = _Search()
    survive(None, partial(search.run, root), None)
    return Memory(search.notes, search.copies and not search.shared, search.shared, search.places)


def copied(thing: Any) -> Any:
    """Return a copy of an object, or the object itself if it cannot be copied, or is large."""
    if not memory_of(thing).copies:
        return thing
    return survive(None, partial(copy.deepcopy, thing), thing)


class _Search:
    def __init__(self) -> None:
        self.notes, self.places = dict[str, Note](), dict[str, tuple[Any, Any]]()
        self.copies, self.shared = True, False
        self._bytes = 0
        self._seen = dict[int, Any]()
        self._waiting = deque[tuple[str, Any, int, tuple[Any, Any] | None]]()

    def run(self, root: Any) -> None:
        self._waiting.append(("", root, 0, None))
        while self._waiting:
            path, thing, depth, place = self._waiting.popleft()
            if is_exactly(thing, _PLAIN):
                self._note(path, Note("value", shorten(thing)))
                if place is not None:
                    self.places[path.lstrip(".")] = place
                continue
            if id(thing) in self._seen:
                continue
            if len(self._seen) >= _MOST or len(self.notes) >= _NOTES:
                self.copies = False
                return
            self._seen[id(thing)] = thing
            survive(None, partial(self._look, path, thing, depth), None)

    def _note(self, path: str, note: Note) -> None:
        self.notes[path.lstrip(".")] = note

    def _look(self, path: str, thing: Any, depth: int) -> None:
        kind = type(thing)
        if issubclass(kind, (*_CODE, *_CAUGHT)):
            return
        self.copies &= not any("__del__" in members_of(base) for base in mro_of(kind))
        if is_generator(thing):
            self._note(path, Note("generator", f"{qualname_of(kind)} {digest_of(state_of(thing))}"))
        elif issubclass(kind, (list, tuple, deque)) or kind is range:
            self._list(path, thing, depth)
        elif issubclass(kind, dict):
            self._dict(path, thing, depth)
        elif (size := _bytes_of(thing)) is not None:
            self._bytes += size
            self.shared |= not issubclass(kind, np.ndarray) and thing.is_shared() and thing.device.type == "cpu"
            self.copies &= self._bytes <= _MOST_BYTES
            self._array(path, thing)
        elif issubclass(kind, types.FunctionType):
            self._function(path, thing, depth)
        elif issubclass(kind, types.MethodType):
            self._add(path, thing.__self__, depth)
        elif issubclass(kind, partial):
            for number, one in enumerate((thing.func, *thing.args, *thing.keywords.values())):
                self._add(f"{path}[{number}]", one, depth)
        else:
            self._object(path, thing, depth)

    def _add(self, path: str, thing: Any, depth: int, place: tuple[Any, Any] | None = None) -> None:
        if depth < _DEEPEST:
            self._waiting.append((path, thing, depth + 1, place))

    def _list(self, path: str, things: Any, depth: int) -> None:
        length = len(things)
        self.copies &= length <= _LONGEST
        some = [things[place] for place in spread(length, _SAMPLED)]
        if all(map(_is_plain, some)):
            texts = list(map(repr, some))
            parts = digest_of(sorted(texts)) if len(texts) == length else str(length)
            self._note(path, Note("order", f"{length} elements, {digest_of(texts)}", parts))
            return
        for number, one in enumerate(some[:_ENTRIES]):
            self._add(f"{path}[{number}]", one, depth)

    def _dict(self, path: str, things: dict[Any, Any], depth: int) -> None:
        self.copies &= len(things) <= _LONGEST
        for key, value in list(dict.items(things)) if len(things) <= _ENTRIES else ():
            if is_exactly(key, _PLAIN):
                self._add(f"{path}[{key!r}]", value, depth, (things, key) if type(things) is dict else None)

    def _array(self, path: str, array: Any) -> None:
        shape, text = tuple(array.shape), f"array {tuple(array.shape)} {Canary(array).digest}"
        if len(shape) == 1 and shape[0] <= _LONGEST:
            self._note(path, Note("order", text, str(Canary(np.sort(np.asarray(array))).digest)))
        else:
            self._note(path, Note("value", text))

    def _function(self, path: str, function: types.FunctionType, depth: int) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._add(f"{path}.{name}", survive(None, partial(getattr, cell, "cell_contents"), None), depth)
        for name in function.__code__.co_names:
            value = dict.get(function.__globals__, name)
            if value is not None and package_of(type(value)) not in _LIBRARIES:
                self._add(f"{path}.{name}", value, depth)

    def _object(self, path: str, thing: Any, depth: int) -> None:
        kind = type(thing)
        if has(kind, "__next__"):
            left = survive(None, partial(length_hint, thing, -1), -1) if package_of(kind) == "builtins" else -1
            ended = type(thing) is types.GeneratorType and thing.gi_frame is None
            told = f", {left} left" if left >= 0 else ", at its end" if ended else ""
            read = attributes_of(thing).get("_num_yielded")  # of a DataLoader
            told += f", {read} read" if type(read) is int else ""
            self._note(path, Note("iterator", f"{qualname_of(kind)}{told}"))
            if package_of(kind) in _LIBRARIES:
                return
        if package_of(kind) in _UNSEARCHED:
            return
        if package_of(kind) == "multiprocessing" and has(kind, "value"):
            self.shared = True
            self._add(f"{path}.value", ask(thing, "value"), depth)
            return
        attributes = attributes_of(thing)
        for name, value in attributes.items():
            self._add(f"{path}.{name}", value, depth, (attributes, name))
        for base in mro_of(kind):
            for name, member in list(members_of(base).items()):
                # Members for offsets, which classes written in C have, contain addresses.
                if type(member) is types.MemberDescriptorType and not name.endswith("offset__"):
                    self._add(f"{path}.{name}", survive(None, partial(member.__get__, thing), None), depth)
                elif name == "__iter__" and type(member) is types.FunctionType:
                    self._function("", member, depth)


def _is_plain(thing: Any) -> bool:
    """Return whether an element of a list is a plain value, a path, or a tuple of these, such as a file and a label."""
    if type(thing) is tuple:
        return all(is_exactly(one, _NAMED) for one in thing)
    return is_exactly(thing, _NAMED)


def _bytes_of(thing: Any) -> int | None:
    """Return the size of an array or tensor of plain numbers; None for anything else."""
    kind = type(thing)
    if issubclass(kind, np.ndarray):
        return None if np.ndarray.dtype.__get__(thing).hasobject else int(np.ndarray.nbytes.__get__(thing))
    if any(qualname_of(base) == "Tensor" and package_of(base) == "torch" for base in mro_of(kind)):
        return int(thing.numel() * thing.element_size())
    return None
