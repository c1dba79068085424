"""Finds DALI iterators inside other objects that read them, as nothing would restore their position.

Only values that can be seen without running user code are checked: stored attributes, closures, globals that a function
uses, the contents of `functools.partial` and of iterators such as `zip`, and lists, tuples, sets and dictionaries of
these.
"""

from __future__ import annotations

import dis
import gc
import types
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from resumable._fetch.own_state import state_methods
from resumable._introspection import ask, attributes_of, members_of, module_of, mro_of, qualname_of, survive
from resumable.backends.dali.private import BaseIterator, is_read_by_hand
from resumable.backends.dali.refusals import NOT_DYNAMIC
from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["refuse_hidden"]


_MOST = 100  # elements of a container: there are few DALI iterators, but there may be millions of samples
_DEEPEST = 2  # levels of nested containers
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)


def refuse_hidden(source: Any) -> None:
    """Reject an object that reads DALI iterators which it holds, unless it has a state.

    Args:
        source: the object to wrap, which is not a DALI iterator itself.

    Raises:
        UnsupportedError: it holds DALI iterators; the message says where.
    """
    if issubclass(type(source), (list, tuple)):
        if any(map(_is_iterator, gc.get_referents(source)[:_MOST])):
            raise UnsupportedError(
                "this is a list of DALI iterators.\nEach iterator would be treated as a batch. Combine them in the "
                "order that you want: wrap(resumable.backends.dali.in_turn(iterators))."
            )
        return
    for holder in [source, vars(source)["dataset"]] if _is_data_loader(source) else [source]:
        found: list[tuple[str, str]] = survive(f"a {qualname_of(type(holder))}", partial(_iterators_of, holder), [])
        if found and state_methods(type(holder)) is None:
            raise _refused(holder, sorted({name for _, name in found}), found[0][0])


def _refused(holder: Any, places: list[str], what: str) -> UnsupportedError:
    name = ask(holder, "__qualname__", qualname_of(type(holder)))
    if "dynamic" in what:
        return UnsupportedError(f"{name} reads {what} that it holds: {', '.join(places)}.\n{NOT_DYNAMIC}")
    return UnsupportedError(
        f"{name} reads {what} that it holds: {', '.join(places)}.\n"
        "They continue from their current position, which no state contains. A resumed run would get different "
        "batches, and could read them only once. Wrap the DALI iterators themselves: wrap(iterator), or "
        "wrap(resumable.backends.dali.in_turn(iterators)) for several, with transform=... to process a batch. Or "
        f"define state_dict and load_state_dict on {name}, if it can restore them itself."
    )


def _is_data_loader(source: Any) -> bool:
    names = (f"{module_of(base)}.{qualname_of(base)}" for base in mro_of(type(source)))
    return "torch.utils.data.dataloader.DataLoader" in names


def _is_iterator(thing: Any) -> str:
    """Return what a thing is, if it has a position in DALI; empty if it has none."""
    return "DALI iterators" if issubclass(type(thing), BaseIterator) else is_read_by_hand(thing)


def _iterators_of(thing: Any) -> list[tuple[str, str]]:
    """Return what a thing holds that has a position in DALI, and where."""
    held = [(name, one) for name, value in _held_by(thing) for one in _flat(value)]
    return [(what, name) for name, one in held if (what := _is_iterator(one))]


def _held_by(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values that an object holds, with their names."""
    if issubclass(type(thing), partial):
        yield from _held_by(thing.func)
        yield from ((f"argument {number}", value) for number, value in enumerate(thing.args))
        yield from thing.keywords.items()
    elif type(thing) is types.MethodType:
        yield "its object", thing.__self__
        yield from _held_by(thing.__func__)
        yield from _attributes(thing.__self__)
    elif type(thing) is types.FunctionType:
        yield from _held_by_function(thing)
    elif type(thing) is types.GeneratorType:
        yield from (thing.gi_frame.f_locals if thing.gi_frame is not None else {}).items()
        yield from _globals(thing.gi_code, getattr(thing.gi_frame, "f_globals", {}))
    elif module_of(type(thing)) in {"builtins", "itertools"}:
        yield from ((qualname_of(type(thing)), value) for value in gc.get_referents(thing))
    else:
        yield from _attributes(thing)
        for name in ("__iter__", "__next__", "__getitem__", "__call__"):
            function = members_of(type(thing)).get(name)
            if type(function) is types.FunctionType:
                yield from _held_by_function(function)


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that are stored in an object, in its slots or in its class."""
    yield from ((str(name), value) for name, value in attributes_of(thing).items() if type(name) is str)
    for kind in mro_of(type(thing)):
        for name, value in members_of(kind).items():
            if type(value) is types.MemberDescriptorType:
                try:
                    yield name, value.__get__(thing)
                except AttributeError:  # a slot that was not filled
                    continue
            elif not callable(value):
                yield name, value


def _held_by_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the values that a function closes over, its defaults, and the globals that it reads."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield from ((name, value) for value in gc.get_referents(cell))  # none if it was not filled
    yield "a default", function.__defaults__
    yield "a default", function.__kwdefaults__
    yield from _globals(function.__code__, function.__globals__)


def _globals(code: types.CodeType, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the globals that code reads, and does not set itself."""
    steps = list(dis.get_instructions(code))
    own = {str(each.argval) for each in steps if each.opname == "STORE_GLOBAL"}
    read = {str(each.argval) for each in steps if each.opname == "LOAD_GLOBAL"} - own
    yield from ((name, values[name]) for name in sorted(read) if name in values)


def _flat(value: Any, deep: int = _DEEPEST) -> Iterator[Any]:
    """Yield a value, or elements of a container and of nested containers."""
    if not issubclass(type(value), _CONTAINERS):
        yield value
    elif deep:
        for one in gc.get_referents(value)[:_MOST]:
            yield from _flat(one, deep - 1)
