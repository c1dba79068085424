"""A source's own generators, which are seeded for each sample like the global ones.

The seed is the sample's key mixed with a digest of the generator's path, so two generators of one pipeline yield
different numbers. Test vectors pin the numbers for a key.
"""

from __future__ import annotations

import gc
import os
import pickle
import random
import sys
import threading
import types
import warnings
import weakref
from collections import Counter, defaultdict, deque
from contextvars import ContextVar
from functools import partial
from hashlib import blake2b
from itertools import chain
from logging import getLogger
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable._introspection import (
    attributes_of,
    is_exactly,
    members_of,
    module_of,
    mro_of,
    package_of,
    qualname_of,
    survive,
)
from resumable._randomness.keyed import mix_int
from resumable.errors import PromiseWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence


__all__ = ["OwnGenerator", "OwnGenerators", "Place", "find_generators", "is_generator", "state_of"]


# ------------------------------------------------------------------ finding
#
# Finds a source's own generators, such as `self.rng = numpy.random.default_rng(0)` in a transform.
#
# The search covers the objects of the source: attributes, keys and elements of containers, objects that functions are
# bound to, close over or have as defaults, and globals that functions and methods use from their own module. It calls
# no code of the source, not even a property, a metaclass or `__hash__` of a key; only a weak proxy asks its object. So
# no object can hide a generator next to it. Each generator has a path, such as `dataset.transform.steps[1].rng`, which
# is the same in every process.
#
# Large containers mostly hold data: millions of numbers, or a dict for each sample. They are sifted first, a hundred
# times as fast: only entries with something other than data are entered.

_MOST_OBJECTS = 20_000  # objects to enter, the nearest first
_LONGEST_PATH = 2000  # characters: a deeply nested list has a path of any length, and each costs its length
_MOST_ENTRIES = 3_000_000  # entries of large containers to sift
_LARGE = 64  # entries from which a container is sifted
_OURS = __name__.partition(".")[0]
_CLIENTS = frozenset(  # of storage: their objects number tens of thousands, and none is a user's
    {"fsspec", "s3fs", "gcsfs", "adlfs", "botocore", "aiobotocore", "boto3", "s3transfer", "google", "azure", "pyarrow"}
    | {"aiohttp", "requests", "urllib3", "huggingface_hub"}
)
# Libraries whose objects have no generators but the global ones.
_LIBRARIES = frozenset({*sys.stdlib_module_names, "numpy", "torch", *_CLIENTS}) - {"__main__"}
_HOLDERS = frozenset(  # modules of these libraries whose objects hold objects of users in attributes
    {"types", "argparse", "optparse", "collections", "contextlib", "functools", "numpy", "queue", "weakref"}
    | {"_weakrefset", "shelve", "graphlib"}
)
_REFERRING = frozenset({"builtins", "_collections", "functools", "itertools", "operator"})  # the same, written in C
_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, memoryview, range, slice, type),
    *(np.generic, np.dtype, types.ModuleType, types.CodeType, types.FrameType, types.TracebackType),
)
_METHODS = types.FunctionType, staticmethod, classmethod, property
_DESCRIPTORS = types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType
_NUMPY = np.random.Generator, np.random.RandomState
_GLOBAL: Any = random.getstate.__self__, np.random.get_state.__self__  # type: ignore[attr-defined]  # methods of these


# Accessors that a user's subclass cannot override.
_OF_PARTIAL: dict[str, Any] = {"": partial.func, ".args": partial.args, ".keywords": partial.keywords}
_OF_METHODS: dict[type, Any] = {
    staticmethod: staticmethod.__func__,
    classmethod: classmethod.__func__,
    property: property.fget,
}
_SEQUENCES: tuple[Any, ...] = (list, tuple, deque)
_SETS: tuple[Any, ...] = (set, frozenset)
_CONTAINERS = (dict, *_SEQUENCES, *_SETS)
_UNORDERED = "{"  # in the path of an element of a set
_FACTORY: Any = members_of(defaultdict)["default_factory"]
_DTYPE: Any = np.ndarray.dtype
_BEHIND: tuple[tuple[Any, Callable[[Any], list[tuple[str, Any]]]], ...] = (
    (partial, lambda thing: [(name, member.__get__(thing)) for name, member in _OF_PARTIAL.items()]),
    ((types.BuiltinFunctionType, types.MethodWrapperType), lambda thing: [("", thing.__self__)]),
    (weakref.ref, lambda thing: [("()", weakref.ref.__call__(thing))]),
    ((weakref.ProxyType, weakref.CallableProxyType), lambda thing: [("()", thing.__init__.__self__)]),
    (threading.local, lambda thing: [("", threading.local.__getattribute__(thing, "__dict__"))]),
    (ContextVar, lambda thing: [("", ContextVar.get(thing, None))]),
)
_SPECIAL = (
    *chain.from_iterable(kinds if type(kinds) is tuple else (kinds,) for kinds, _ in _BEHIND),
    *(types.FunctionType, types.MethodType, random.Random, *_NUMPY, defaultdict),
)
_PLAIN_KEYS = (str, int, float, complex, bool, bytes, type(None))

_log = getLogger("resumable")
_known: dict[int, tuple[weakref.ref[type], list[Place]]] = {}  # by id, because a class may not be hashable


class Place(NamedTuple):
    """Where an object is found.

    Args:
        path: from a root, for messages, and to identify it.
        get: returns the object that is there now; None if there is none.
    """

    path: str
    get: Callable[[], Any]


def find_generators(roots: Mapping[str, Any]) -> list[Place]:
    """Find generators. If one is in several places, the nearest to a root is returned.

    Args:
        roots: the objects to search; their paths start with the keys.
    """
    return list(_Search().run(_there(name, root) for name, root in roots.items()))


class _Search:
    """One search.

    `stopped` has the paths at which it stopped, each with the limit; `entries` counts the sifted entries.
    """

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}  # keeps the objects, so no new one gets the same id
        self._classes: dict[int, type] = {}  # by id, because a metaclass may make its classes unhashable
        self._kinds: dict[int, _Kind] = {}  # the same
        self._plain = set(map(id, _PLAIN))  # classes that hold only data
        self._sifted = set(map(id, _CONTAINERS))  # classes whose first object was entered, for what the class has
        self.stopped: list[tuple[str, str]] = []
        self.entries = 0

    def run(self, roots: Iterable[Place]) -> Iterator[Place]:
        waiting = deque(roots)
        while waiting:
            place = waiting.popleft()
            thing = survive(place.path, place.get, None)
            if _is_plain(thing) or id(thing) in self._seen:
                continue
            if len(self._seen) >= _MOST_OBJECTS:
                self.stopped.append((place.path, f"{_MOST_OBJECTS} objects"))
                return
            self._seen[id(thing)] = thing
            if is_generator(thing):
                yield place
            elif len(place.path) > _LONGEST_PATH:
                self.stopped.append((place.path, f"paths of {_LONGEST_PATH} characters"))
            else:
                waiting.extend(survive(place.path, partial(self._inside, thing, place.path), []))

    def _inside(self, thing: Any, path: str) -> list[Place]:
        kind = type(thing)
        if kind is types.FunctionType:
            return list(_of_function(thing, path))
        if kind is types.MethodType:
            return [_there(path, thing.__self__), _there(path, thing.__func__)]
        for special, behind in _BEHIND:
            if issubclass(kind, special):
                return [_there(f"{path}{name}", inner) for name, inner in behind(thing)]
        containers = _entries(thing, path)
        elements = [place(number) for values, place in containers for number in self._sift(values, path)]
        if _is_of_library(kind) and package_of(kind) in _REFERRING and not containers:
            return _referred(thing, path)
        if not _holds(kind):
            return elements
        return [*elements, *_attributes(thing, path), *_wrapped(thing, path), *self._of_class(kind)]

    def _sift(self, values: list[Any], path: str) -> list[int]:
        """Return the numbers of the entries that may lead to a generator."""
        self.entries += len(values)
        plain, kinds = self._plain, set(map(id, map(type, values)))
        if not kinds <= plain and len(values) > _LARGE:
            for kind in dict(zip(map(id, map(type, values)), map(type, values), strict=True)).values():
                self._kind(kind)
        if kinds <= plain:  # in a tenth of the time
            return []
        level = [(number, value) for number, value in enumerate(values) if id(type(value)) not in plain]
        return [number for number, _ in level] if len(values) <= _LARGE else self._sift_each(level, path)

    def _sift_each(self, level: list[tuple[int, Any]], path: str) -> list[int]:
        """Look into the entries of a large container, at any depth."""
        plain, found, seen, looked = self._plain, list[int](), set[int](), 0
        for number, value in level:
            inner = [value]
            while inner:
                one = inner.pop()
                if id(one) in seen:
                    continue
                seen.add(id(one))
                what = self._kind(type(one))
                if what.plain:
                    continue
                inside = what.inside(one) if id(what.of) in self._sifted else None
                if inside is None:
                    self._sifted.add(id(what.of))
                    found.append(number)
                    break
                if looked <= _MOST_ENTRIES:
                    looked += len(inside)
                    inner += [each for each in inside if id(type(each)) not in plain]
        self.entries += looked
        if looked > _MOST_ENTRIES and found:
            self.stopped.append((path, f"{_MOST_ENTRIES} entries of containers"))
        elif looked > _MOST_ENTRIES:
            _log.info("%s has only data in its first %d entries, so the rest counts as data", path, _MOST_ENTRIES)
        return found

    def _kind(self, kind: type) -> _Kind:
        known = self._kinds.get(id(kind))
        if known is None:
            known = self._kinds[id(kind)] = _Kind(kind)
            if known.plain:
                self._plain.add(id(kind))
        return known

    def _of_class(self, kind: type) -> Iterator[Place]:
        """Yield the objects of a class and its bases, and those that their methods use from their modules."""
        for base in mro_of(kind):
            if id(base) not in self._classes:
                self._classes[id(base)] = base
                yield from _known_of(base)


class _Kind:
    """How the objects of one class are sifted.

    Args:
        of: the class; kept, so no new class gets its id.
    """

    __slots__ = ("_is_array", "_is_iterated", "_is_simple", "of", "plain")

    def __init__(self, of: type) -> None:
        self.of, self._is_array = of, issubclass(of, np.ndarray)
        proxy = any("__wrapped__" in members_of(base) for base in mro_of(of))
        special = proxy or issubclass(of, _SPECIAL) or _is_torchs(of)
        holds = issubclass(of, _CONTAINERS) or _holds(of)
        self._is_iterated = any(of is base for base in (*_SEQUENCES, *_SETS))
        self._is_simple = holds and not special and not self._is_array
        kept = holds or special or self._is_array or package_of(of) in _REFERRING
        self.plain = issubclass(of, _PLAIN) or not kept

    def inside(self, thing: Any) -> Collection[Any] | None:
        """Return what an object holds; None if only entering it can tell."""
        if self._is_iterated:
            return thing  # type: ignore[no-any-return]  # a container
        if self._is_array and _is_plain(thing):
            return ()
        # In half the time that reading each attribute takes, and an object makes no dict for that.
        return gc.get_referents(thing) if self._is_simple else None


def _holds(kind: type) -> bool:
    """Return whether attributes of a class's objects may be objects of users."""
    return not _is_of_library(kind) or module_of(kind) in _HOLDERS


def _known_of(base: type) -> list[Place]:
    """Return the objects of a class itself; searched once."""
    reference, known = _known.get(id(base), (None, []))
    if reference is not None and reference() is base:
        return known
    found = list(_of_one_class(base))
    if "<locals>" not in qualname_of(base):  # a cached object may keep its class alive, as a module does anyway
        _known[id(base)] = weakref.ref(base, partial(_forget, id(base))), found
    return found


def _forget(number: int, reference: weakref.ref[type]) -> None:
    if _known.get(number, (None,))[0] is reference:
        del _known[number]


def _of_one_class(base: type) -> Iterator[Place]:
    if _is_of_library(base) or package_of(base) == _OURS:
        return
    for name, value in list(members_of(base).items()):
        path = f"{qualname_of(base)}.{_text(name, 0)}"
        kind = type(value)
        if not issubclass(kind, (*_METHODS, *_DESCRIPTORS)):
            yield Place(path, partial(members_of(base).get, name))
        inner = [member.__get__(value) for known, member in _OF_METHODS.items() if issubclass(kind, known)]
        for function in (value, *inner):
            if type(function) is types.FunctionType:  # most methods close over nothing except their class
                yield from [_there(path, function)] if function.__closure__ else _of_module(function)


def is_generator(thing: Any) -> bool:
    """Return whether an object is a random generator that can be seeded, and is not a global one."""
    kind = type(thing)
    if issubclass(kind, random.Random):
        return not issubclass(kind, random.SystemRandom) and thing is not _GLOBAL[0]
    if issubclass(kind, _NUMPY):
        return thing is not _GLOBAL[1]
    if not _is_torchs(kind):
        return False
    torch = sys.modules["torch"]
    return torch.Generator.device.__get__(thing).type == "cpu" and thing is not torch.default_generator


def _is_torchs(kind: type) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(kind, torch.Generator)


def _is_plain(thing: Any) -> bool:
    kind = type(thing)
    return issubclass(kind, _PLAIN) or (issubclass(kind, np.ndarray) and not _DTYPE.__get__(thing).hasobject)


def _is_of_library(kind: type) -> bool:
    return package_of(kind) in _LIBRARIES and not _is_container(kind)


def _is_container(kind: type) -> bool:
    """Return whether a class of PyTorch contains users' objects, as `Subset` or `Sequential` does."""
    return module_of(kind).startswith(("torch.utils.data", "torch.nn.modules"))


def _entries(thing: Any, path: str) -> list[tuple[list[Any], Callable[[int], Place]]]:
    """Return the entries of a container, and a function that returns the `Place` of each.

    It uses the methods of the built-in class: a subclass may override them.
    """
    kind, found = type(thing), list[tuple[list[Any], "Callable[[int], Place]"]]()
    if issubclass(kind, dict):
        keys = list(dict.keys(thing))

        def of_value(number: int) -> Place:
            key = keys[number]
            return Place(f"{path}[{_text(key, number, show=repr)}]", partial(_value, thing, key))

        found.append((list(dict.values(thing)), of_value))
        found.append((keys, lambda number: _there(f"{path}.keys[{number}]", keys[number])))
    for base in _SEQUENCES:
        if issubclass(kind, base):
            get = partial(_element, base, thing)
            found.append((list(base.__iter__(thing)), lambda at, get=get: Place(f"{path}[{at}]", partial(get, at))))  # type: ignore[misc]  # a default
    if issubclass(kind, _SETS):
        some = list(next(base for base in _SETS if issubclass(kind, base)).__iter__(thing))
        # Their order differs between processes, unlike their classes.
        found.append((some, lambda at: _there(f"{path}{_UNORDERED}{qualname_of(type(some[at]))}}}", some[at])))
    if issubclass(kind, np.ndarray):
        flat = np.ndarray.view(thing, np.ndarray).reshape(-1)
        found.append((flat.tolist(), lambda at: Place(f"{path}[{at}]", partial(flat.item, at))))
    if issubclass(kind, defaultdict):
        make = _FACTORY.__get__(thing)
        found.append(([make], lambda _: _there(f"{path}.default_factory", make)))
    return found


def _referred(thing: Any, path: str) -> list[Place]:
    """Return what an object holds that is written in C, such as an iterator or a view of a dict."""
    inner = gc.get_referents(thing)
    return [_there(path if len(inner) == 1 else f"{path}[{at}]", one) for at, one in enumerate(inner)]


def _attributes(thing: Any, path: str) -> Iterator[Place]:
    """Yield the attributes of an object. Paths leave out this package's own attributes, because names may change."""
    ours = package_of(type(thing)) == _OURS
    attributes = attributes_of(thing)
    for number, name in enumerate(list(dict.keys(attributes))):
        yield Place(path if ours else f"{path}.{_text(name, number)}", partial(_value, attributes, name))
    for base in mro_of(type(thing)):
        for name, value in list(members_of(base).items()) if "__slots__" in members_of(base) else ():
            if type(value) is types.MemberDescriptorType:
                yield Place(path if ours else f"{path}.{name}", partial(_slot, value.__get__, thing))


def _wrapped(thing: Any, path: str) -> Iterator[Place]:
    """Yield the object inside a proxy that is written in C, such as wrapt's.

    A lazy proxy creates that object when it is accessed, so the garbage collector is asked what the proxy holds now.
    """
    if any(type(members_of(base).get("__wrapped__")) is types.GetSetDescriptorType for base in mro_of(type(thing))):
        for one in gc.get_referents(thing):
            if type(one) is not dict:  # the dict has the proxy's attributes
                yield _there(f"{path}.__wrapped__", one)


def _of_function(function: types.FunctionType, path: str) -> Iterator[Place]:
    name = dict.get(function.__globals__, "__name__")
    for free, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield Place(f"{path}.{free}", partial(_of_cell, cell))  # of a decorator, a user's function
    if type(name) is str and name.partition(".")[0] in _LIBRARIES:
        return
    yield _there(f"{path}.defaults", function.__defaults__)
    yield _there(f"{path}.defaults", function.__kwdefaults__)
    yield _there(path, vars(function))  # attributes that decorators have set
    yield from _of_module(function)


def _of_module(function: types.FunctionType) -> Iterator[Place]:
    """Yield the globals that a function uses from its own module, without classes and functions of other modules."""
    scope = function.__globals__
    module = PurePath(function.__code__.co_filename).stem  # the same for a script and an imported module
    for name in _names(function.__code__):
        value = dict.get(scope, name)
        if type(value) is not types.FunctionType or value.__globals__ is scope:
            yield Place(f"{module}.{name}", partial(dict.get, scope, name))


def _names(code: types.CodeType) -> list[str]:
    inner = (_names(one) for one in code.co_consts if type(one) is types.CodeType)
    return [*code.co_names, *chain.from_iterable(inner)]


def _there(path: str, thing: Any) -> Place:
    return Place(path, lambda: thing)


def _text(key: Any, number: int, show: Callable[[Any], str] = str) -> str:
    """Return a key as a step of a path; its number if its text may differ between processes."""
    parts = key if type(key) is tuple else (key,)
    if all(is_exactly(part, _PLAIN_KEYS) for part in parts):
        return survive("a key of a dict", lambda: show(key), str(number))  # an integer may have too many digits
    return f"{qualname_of(type(key))} {number}"


def _value(things: dict[Any, Any], key: Any) -> Any:
    """Return a value of a dict, without calling `__hash__` or `__eq__` of a user's class."""
    if is_exactly(key, _PLAIN_KEYS):
        return dict.get(things, key)
    return next((value for one, value in list(dict.items(things)) if one is key), None)


def _element(base: Any, things: Any, number: int) -> Any:
    return base.__getitem__(things, number) if number < base.__len__(things) else None


def _slot(get: Callable[[Any], Any], thing: Any) -> Any:
    return survive(None, partial(get, thing), None)  # an empty slot raises


def _of_cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


# ------------------------------------------------------------------ seeding

_POSITIVE = (1 << 63) - 1
_PCG = {"PCG64", "PCG64DXSM"}  # their state is one number and an odd increment
_INCREMENT = 0xDA3E39CB94B95BDB_5851F42D4C957F2D
_MOST = 1024  # generators
_MANY = 100_000  # entries of large containers from which later searches are rarer
_OF_LIBRARIES = (random.Random, np.random.RandomState)  # the others keep their state in a separate class
_LATE = (
    "a random generator was found at {} only after batches had been read: a {}.\n"
    "Its numbers so far did not depend on the sample, so they would differ after a resume. Create it before the first "
    "sample is read, for example in __init__, or create a new one for each sample, seeded with a number from a global "
    "generator."
)
_LONGEST = 200  # characters of a path in a message
_STOPPED = (
    "the search for random generators stopped at {}: it is limited to {}.\n"
    "A generator that it did not reach is not seeded for each sample, so its numbers would differ after a resume. Make "
    "generators attributes of the dataset or transform itself, or use random, numpy.random or torch."
)


class OwnGenerator:
    """A generator at its path in a source.

    Args:
        path: its path.
        get: returns the object that is there now.
        salt: distinguishes its numbers from the numbers of other generators; by default, the path.
    """

    def __init__(self, path: str, get: Callable[[], Any], *, salt: str | None = None) -> None:
        self.name, self.get = path, get
        self._was: Any = None  # the generator before a batch
        self._in_a_row = 0  # consecutive batches in which it was replaced
        salted = (path if salt is None else salt).encode(errors="surrogatepass")
        self._salt = int.from_bytes(blake2b(salted, digest_size=8, person=b"resumable1").digest(), "little")

    def now(self) -> Any:
        """Return the generator that is there now; None if there is none."""
        found = survive(self.name, self.get, None)
        return found if is_generator(found) else None

    @property
    def kind(self) -> str:
        """The name of its class, for messages."""
        return qualname_of(type(self.now()))

    def seed(self, key: int) -> None:
        """Seed it from a sample's key."""
        generator = self.now()
        if generator is not None:
            _seed(generator, mix_int(key ^ self._salt))

    def look(self) -> tuple[Any, Any]:
        """Return the current generator and its state."""
        generator = self.now()
        return generator, state_of(generator)

    def changed(self, look: tuple[Any, Any]) -> bool:
        """Return whether it was replaced, used or seeded since."""
        generator, state = look
        return self.now() is not generator or state_of(generator) != state

    def put_back(self, look: tuple[Any, Any]) -> None:
        """Restore the state of the generator that was there."""
        _give(*look)

    def begin(self) -> None:
        """Note that a batch is about to be read."""
        self._was = self.now()

    def is_another(self) -> bool:
        """Return whether the source replaced it in this batch, so samples were read before it was seeded.

        If it is replaced again when the batch is read again, the source creates one for each sample. Then it counts as
        unchanged.
        """
        if self.now() is self._was:
            self._in_a_row = 0
            return False
        self._in_a_row += 1
        return self._in_a_row == 1


class OwnGenerators:
    """A source's own generators, searched for in each process and again in each epoch.

    Args:
        roots: the objects that read samples; their paths start with the keys.
    """

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self._roots = dict(roots)
        self._known: dict[str, OwnGenerator | None] = {}  # None for one that cannot be seeded
        self._looked: tuple[int, int] | None = None  # process and epoch of the last search
        self._read = 0  # batches since then
        self._wide = self._told = False  # whether that search was slow, and whether a limit was reported

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the roots: a different process has different generators."""
        return OwnGenerators, (self._roots,)

    def forget(self, root: str) -> None:
        """Exclude the generators below a root."""
        self._roots.pop(root, None)

    def before(self, epoch: int) -> Sequence[OwnGenerator]:
        """Return new generators, if the process or the epoch has changed since the last batch."""
        self._read += 1
        if self._looked == (os.getpid(), epoch):
            return ()
        self._looked, self._read = (os.getpid(), epoch), 1
        return self._look()

    def after(self) -> Sequence[OwnGenerator]:
        """Return generators that are new after a batch, searched for after batches 1, 2, 4, 8 and so on.

        If there is much data to search, that is done after batches 1, 16, 256 and so on.

        Warns:
            PromiseWarning: one appeared after the first batch, so it may have been in use.
        """
        if self._read & (self._read - 1) or (self._wide and self._read.bit_length() % 4 != 1):
            return ()
        found = self._look()
        for one in found if self._read > 1 else ():
            warnings.warn(_LATE.format(one.name, one.kind), PromiseWarning, stacklevel=2)
        return found

    def _look(self) -> Sequence[OwnGenerator]:
        """Search for generators, and return those at new paths."""
        found, seen = list[OwnGenerator](), Counter[str]()
        search = _Search()
        places = list(search.run(_there(name, root) for name, root in self._roots.items()))
        self._wide = search.entries > _MANY
        self._tell([*search.stopped, *((place.path, f"{_MOST} generators") for place in places[_MOST:])])
        for path, get in places[:_MOST]:
            seen[path] += 1
            name = path if seen[path] == 1 else f"{path} ({seen[path]})"
            if name not in self._known:
                salt = path if _UNORDERED in path else None  # elements of a set have no order to tell them apart
                one = self._known[name] = OwnGenerator(name, get, salt=salt) if _can_be_seeded(name, get()) else None
                found += [] if one is None else [one]
            elif (known := self._known[name]) is not None:
                known.get = get  # its owner may have been replaced
        return found

    def _tell(self, stopped: Sequence[tuple[str, str]]) -> None:
        """Report the first limit at which a search stopped, once."""
        if stopped and not self._told:
            self._told = True
            path, limit = stopped[0]
            shown = path if len(path) <= _LONGEST else f"{path[:_LONGEST]}..."  # a nested list has a path of any length
            warnings.warn(_STOPPED.format(shown, limit), PromiseWarning, stacklevel=2)


def _can_be_seeded(name: str, generator: Any) -> bool:
    """Return whether a generator can be seeded and restored; one of a user's class may support neither."""
    if is_exactly(generator, _OF_LIBRARIES):
        return True
    return survive(f"the random generator at {name}", lambda: _is_as_before(generator), False)


def _is_as_before(generator: Any) -> bool:
    state = state_of(generator)
    _seed(generator, 0)
    _give(generator, state)
    return bool(state_of(generator) == state)


def _seed(generator: Any, key: int) -> None:
    """Seed a generator with 64 bits, or as many of them as it accepts."""
    if isinstance(generator, random.Random):
        generator.seed(key)
    elif isinstance(generator, np.random.Generator):
        _seed_bits(generator.bit_generator, key)
    elif not isinstance(generator, np.random.RandomState):
        generator.manual_seed(key & _POSITIVE)  # PyTorch's, which uses the low 32 bits
    elif isinstance(bits := generator._bit_generator, np.random.MT19937):  # noqa: SLF001  # nothing public has it
        generator.seed(key >> 32)
    else:
        _seed_bits(bits, key)
        generator.set_state({**generator.get_state(legacy=False), "has_gauss": 0, "gauss": 0.0})


def _seed_bits(bits: Any, key: int) -> None:
    name = type(bits).__name__
    if name in _PCG:
        state = {"state": mix_int(key) << 64 | key, "inc": _INCREMENT}
        bits.state = {"bit_generator": name, "state": state, "has_uint32": 0, "uinteger": 0}
    else:
        bits.state = type(bits)(key).state


def state_of(generator: Any) -> Any:
    """Return a state that can be compared and restored."""
    if generator is None:
        return None
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return pickle.dumps(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return pickle.dumps(generator.get_state(legacy=False))
    return generator.get_state().numpy().tobytes()


def _give(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = pickle.loads(state)  # noqa: S301  # our own bytes
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(pickle.loads(state))  # noqa: S301  # our own bytes
    elif generator is not None:
        import torch  # noqa: PLC0415  # a generator of PyTorch, so torch is loaded

        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
