"""DALI iterators that something else holds and reads: nothing would bring them back to a place.

Only what can be seen without running a user's code is looked at: attributes that are stored, closures, globals that a
function names, what `functools.partial` and iterators such as `zip` hold, and lists, tuples, sets and dictionaries of
those.
"""

from __future__ import annotations

import dis
import gc
import types
from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from resumable._introspection import ask, attributes_of, members_of, module_of, mro_of, qualname_of, survive
from resumable.backends.dali.private import BaseIterator
from resumable.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["refuse_hidden"]


_MOST = 100  # elements of a container: of DALI iterators there are few, of samples there may be millions
_DEEPEST = 2  # containers inside of one another
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_STATES = (("state_dict", "load_state_dict"), ("get_state", "set_state"))


def refuse_hidden(source: Any) -> None:
    """Refuse what reads DALI iterators that it holds, unless it has a state of its own.

    Args:
        source: what is to be wrapped, and is no DALI iterator itself.

    Raises:
        UnsupportedError: it holds some; the message says where.
    """
    if issubclass(type(source), (list, tuple)):
        if any(map(_is_iterator, _elements(source))):
            raise UnsupportedError(
                "this is a list of DALI iterators.\nEach of them would be taken for a batch. Make one source of them, "
                "in the order that you want: wrap(resumable.backends.dali.in_turn(iterators))."
            )
        return
    for holder in [source, vars(source)["dataset"]] if _is_data_loader(source) else [source]:
        found: list[str] = survive(f"a {qualname_of(type(holder))}", partial(_names_of_iterators, holder), [])
        if found and not _has_state(holder):
            raise _refused(holder, sorted(set(found)))


def _refused(holder: Any, places: list[str]) -> UnsupportedError:
    name = ask(holder, "__qualname__", qualname_of(type(holder)))
    return UnsupportedError(
        f"{name} reads DALI iterators that it holds: {', '.join(places)}.\n"
        "They go on where they stand, and no state says where that is: a resumed run would get other batches, and "
        "could read them once. Wrap the DALI iterators themselves: wrap(iterator), or for several "
        "wrap(resumable.backends.dali.in_turn(iterators)), with transform=... for what is done to a batch. Or give it "
        "state_dict and load_state_dict, if it can bring them back itself."
    )


def _is_data_loader(source: Any) -> bool:
    names = (f"{module_of(base)}.{qualname_of(base)}" for base in mro_of(type(source)))
    return "torch.utils.data.dataloader.DataLoader" in names


def _has_state(thing: Any) -> bool:
    kind = type(thing)
    return any(callable(ask(kind, get)) and callable(ask(kind, put)) for get, put in _STATES)


def _is_iterator(thing: Any) -> bool:
    return issubclass(type(thing), BaseIterator)


def _names_of_iterators(thing: Any) -> list[str]:
    return [name for name, value in _held_by(thing) if any(map(_is_iterator, _flat(value)))]


def _held_by(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a thing holds, by name."""
    if issubclass(type(thing), partial):
        yield from _held_by(thing.func)
        yield from ((f"argument {number}", value) for number, value in enumerate(thing.args))
        yield from thing.keywords.items()
    elif type(thing) is types.MethodType:
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
    """Yield attributes that are stored in an object, in its slots or in its class."""
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
    """Yield what a function closes over, its defaults, and the globals that it reads."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield from _content(name, cell)
    yield "a default", function.__defaults__
    yield "a default", function.__kwdefaults__
    yield from _globals(function.__code__, function.__globals__)


def _content(name: str, cell: Any) -> Iterator[tuple[str, Any]]:
    try:
        yield name, cell.cell_contents
    except ValueError:  # a cell that was not filled
        return


def _globals(code: types.CodeType, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the globals that code reads, and does not set itself."""
    steps = list(dis.get_instructions(code))
    own = {str(each.argval) for each in steps if each.opname == "STORE_GLOBAL"}
    read = {str(each.argval) for each in steps if each.opname == "LOAD_GLOBAL"} - own
    yield from ((name, values[name]) for name in sorted(read) if name in values)


def _flat(value: Any, deep: int = _DEEPEST) -> Iterator[Any]:
    """Yield a value, or the first elements of a container, also of one inside of another."""
    if not issubclass(type(value), _CONTAINERS):
        yield value
    elif deep:
        for one in _elements(value):
            yield from _flat(one, deep - 1)


def _elements(container: Any) -> list[Any]:
    """Return the first elements of a container, by Python's own method: a user's may do something else."""
    own: Any = next(base for base in _CONTAINERS if issubclass(type(container), base))
    return list(islice(dict.values(container) if own is dict else own.__iter__(container), _MOST))
