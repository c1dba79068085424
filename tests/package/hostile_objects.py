"""Objects that raise, lie or never end when they are inspected, as real datasets hold them."""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import enum
import functools
import io
import random
import sys
import threading
import types
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import MagicMock, Mock, NonCallableMagicMock

import h5py
import lazy_object_proxy
import numpy as np
import pandas as pd
import torch
import wrapt
from frozenlist import FrozenList
from werkzeug.local import LocalProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Odd(BaseException):
    """Raised by properties: what no `except Exception` catches."""


def fail(*_: object, **__: object) -> Any:
    raise ValueError("inspected")


def fail_oddly(*_: object, **__: object) -> Any:
    raise Odd("inspected")


NAMES = (
    *("state_dict", "load_state_dict", "get_state", "set_state", "set_epoch", "skip", "dataset", "datasets", "shape"),
    *("dtype", "ndim", "nbytes", "sizes", "fingerprint", "generator", "sampler", "iloc", "read", "open", "items"),
)
SPECIAL = (
    *(
        "__len__",
        "__iter__",
        "__getitem__",
        "__eq__",
        "__hash__",
        "__bool__",
        "__repr__",
        "__str__",
        "__contains__",
    ),
    *("__next__", "__index__", "__int__", "__float__", "__array__", "__call__", "__reduce_ex__", "__deepcopy__"),
    *("__dir__", "__sizeof__", "__format__", "__fspath__", "__enter__", "__copy__", "__bytes__"),
)


def raising(name: str, raises: Callable[..., Any], names: tuple[str, ...] = NAMES) -> Any:
    return type(name, (), {one: property(raises) for one in names})()


def raising_methods(name: str, raises: Callable[..., Any], base: Any = object) -> Any:
    return type(name, (base,), dict.fromkeys(SPECIAL, raises))()


class Untouchable:
    def __getattribute__(self, name: str) -> Any:
        raise KeyError(name)


class UntouchableOddly:
    def __getattribute__(self, name: str) -> Any:
        raise Odd(name)


class Exits:
    """Nothing of a held object is asked, so nothing of this is seen either."""

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(name)


class AnswersItself:
    def __getattr__(self, name: str) -> Any:
        return self


class AnswersNumbers:
    def __getattribute__(self, name: str) -> Any:
        return 5


class EndlessAnswers:
    def __getattr__(self, name: str) -> Any:
        return EndlessAnswers()

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield EndlessAnswers()

    def __len__(self) -> int:
        return sys.maxsize


class SaysItIsARandom:
    @property  # type: ignore[misc]  # what proxies do
    def __class__(self) -> Any:
        return random.Random


class ClassRaises:
    @property  # type: ignore[misc]  # what proxies do
    def __class__(self) -> Any:
        raise RuntimeError("not bound")


class DictRaises:
    def __init__(self) -> None:
        object.__setattr__(self, "inside", 1)

    @property
    def __dict__(self) -> Any:  # type: ignore[override]  # that is the oddity
        raise ValueError("no dict")


class DictIsANumber:
    __dict__ = 7  # type: ignore[assignment]  # that is the oddity


class NoModule:
    pass


NoModule.__module__ = None  # type: ignore[assignment]  # that is the oddity


class ModuleIsAProperty:
    __module__ = property(fail)


class ModuleIsASlot:
    """Like the class of Cython's functions."""

    __slots__ = ("never_set",)


ModuleIsASlot.__module__ = vars(ModuleIsASlot)["never_set"]


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        raise KeyError(name)


class MetaAnswers(type):
    def __getattr__(cls, name: str) -> Any:
        return 5


class MetaLies(type):
    def __instancecheck__(cls, thing: object) -> bool:
        raise ValueError("no instances")

    def __subclasscheck__(cls, kind: type) -> bool:
        raise ValueError("no subclasses")

    @property
    def __mro__(cls) -> Any:
        return 5

    @property  # type: ignore[misc]  # that is the oddity
    def __dict__(cls) -> Any:  # type: ignore[override]  # that is the oddity
        raise ValueError("no dict")

    @property
    def __module__(cls) -> Any:  # type: ignore[override]  # that is the oddity
        raise ValueError("no module")


class MetaUnhashable(type):
    __hash__ = None  # type: ignore[assignment]  # what a metaclass with `__eq__` has

    def __eq__(cls, other: object) -> bool:
        raise ValueError("not comparable")


class OfMeta(metaclass=Meta):
    pass


class OfMetaAnswers(metaclass=MetaAnswers):
    pass


class OfMetaLies(metaclass=MetaLies):
    pass


class OfMetaUnhashable(metaclass=MetaUnhashable):
    pass


class HostileList(list[Any]):
    __len__ = __iter__ = __getitem__ = __bool__ = __eq__ = __repr__ = __contains__ = fail
    __hash__ = None


class HostileDict(dict[Any, Any]):
    __len__ = __iter__ = __getitem__ = __eq__ = __repr__ = keys = values = items = get = fail
    __hash__ = None


class HostileTuple(tuple[Any, ...]):
    __slots__ = ()
    __len__ = __iter__ = __getitem__ = __eq__ = __hash__ = __repr__ = fail


class HostileDeque(collections.deque[Any]):
    __len__ = __iter__ = __getitem__ = __eq__ = __repr__ = fail
    __hash__ = None


class Pair(NamedTuple):
    one: Any
    other: Any


class HostilePair(Pair):
    __slots__ = ()
    __len__ = __iter__ = __getitem__ = __repr__ = fail


class HostilePartial(functools.partial[Any]):
    func = args = keywords = property(fail)


class HostileStr(str):
    __slots__ = ()
    __len__ = __iter__ = __getitem__ = __eq__ = __hash__ = __repr__ = __str__ = __format__ = fail


class HostileInt(int):
    __index__ = __eq__ = __hash__ = __repr__ = __str__ = __format__ = __bool__ = fail


class UnsetSlots:
    __slots__ = ("generator", "other")


@dataclasses.dataclass
class OfFields:
    one: int = 1

    def __getattribute__(self, name: str) -> Any:
        raise KeyError(name)


class Color(enum.Enum):
    RED = 1

    @property
    def name(self) -> Any:
        raise ValueError("no name")

    def __repr__(self) -> str:
        raise ValueError("no repr")


class LazyObject:
    """What Django's `SimpleLazyObject` is like: it is made when it is first inspected."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.__dict__["_make"], self.__dict__["_wrapped"] = make, None

    def _evaluated(self) -> Any:
        if self.__dict__["_wrapped"] is None:
            self.__dict__["_wrapped"] = self.__dict__["_make"]()
        return self.__dict__["_wrapped"]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._evaluated(), name)

    @property  # type: ignore[misc]  # what proxies do
    def __class__(self) -> Any:
        return type(self._evaluated())

    def __len__(self) -> int:
        return len(self._evaluated())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._evaluated())

    def __getitem__(self, index: Any) -> Any:
        return self._evaluated()[index]

    def __bool__(self) -> bool:
        return bool(self._evaluated())

    def __eq__(self, other: object) -> bool:
        return bool(self._evaluated() == other)

    def __hash__(self) -> int:
        return hash(self._evaluated())

    def __repr__(self) -> str:
        return repr(self._evaluated())


class HostileRandom(random.Random):
    """Looks like a generator, and cannot be one."""

    getstate = setstate = fail


class HostileBits(np.random.PCG64):
    @property  # type: ignore[misc]  # that is the oddity
    def state(self) -> Any:
        raise ValueError("no state")


class HostileTorchGenerator(torch.Generator):
    device = property(fail)
    get_state = fail


class HostileTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise ValueError("no functions")


class HostileModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        raise ImportError(name)


class Structure(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int), ("pointer", ctypes.c_void_p))


class Key:
    """A key of a dict that changes its mind."""

    broken = False

    def __hash__(self) -> int:
        return fail() if self.broken else 1

    def __eq__(self, other: object) -> bool:
        return bool(fail())

    __repr__ = __str__ = fail


def hostile_keys() -> Any:
    key = Key()
    made = {key: 1}
    key.broken = True
    return made


def of_objects() -> Any:
    made = np.empty(2, object)
    made[0] = Untouchable()
    return made


def frame() -> Any:
    return pd.DataFrame({"a": [OfMetaUnhashable(), DictRaises()]}, dtype=object)


def dead() -> Any:
    thing = UnsetDict()
    return weakref.proxy(thing)


class UnsetDict:
    pass


def cyclic_list() -> Any:
    made: list[Any] = []
    made.append(made)
    return made


def cyclic_dict() -> Any:
    made: dict[str, Any] = {}
    made["self"] = {"up": made}
    return made


def deep() -> Any:
    made: list[Any] = []
    for _ in range(20_000):
        made = [made]
    return made


def not_a_name() -> Any:
    made = UnsetDict()
    vars(made).update({5: 1, HostileKeyStr("odd"): 2})  # type: ignore[dict-item]  # that is the oddity
    return made


class HostileKeyStr(str):
    __slots__ = ()
    __str__ = __repr__ = __format__ = fail


def odd_function() -> Any:
    def function() -> None: ...

    function.__defaults__ = (Untouchable(),)
    function.hidden = Untouchable()  # type: ignore[attr-defined]  # that is the oddity
    function.__name__ = "\udc80"
    return function


def of_odd_globals() -> Any:
    return types.FunctionType((lambda: None).__code__, {"__name__": Untouchable(), "__builtins__": {}})


def h5() -> Any:
    file = h5py.File(io.BytesIO(), "w")
    file["x"] = np.arange(3)
    return file


def closed_h5() -> Any:
    file = h5()
    inside = file["x"]
    file.close()
    return [file, inside]


def half_made() -> Any:
    return wrapt.ObjectProxy.__new__(wrapt.ObjectProxy)  # what `__init__` was never called of


def running() -> Any:
    def function() -> Iterator[int]:
        yield 1

    made = function()
    next(made)
    return made


OBJECTS: dict[str, Callable[[], Any]] = {
    "properties that raise": lambda: raising("Raising", fail),
    "properties that raise a BaseException": lambda: raising("Raising", fail_oddly),
    "special methods that raise": lambda: raising_methods("Raising", fail),
    "special methods that raise a BaseException": lambda: raising_methods("Raising", fail_oddly),
    "raises for any name": Untouchable,
    "raises a BaseException for any name": UntouchableOddly,
    "raises SystemExit for any name": Exits,
    "answers to any name by itself": AnswersItself,
    "answers to any name by a number": AnswersNumbers,
    "answers to any name without an end": EndlessAnswers,
    "says that it is a Random": SaysItIsARandom,
    "raises at __class__": ClassRaises,
    "raises at __dict__": DictRaises,
    "has a number as __dict__": DictIsANumber,
    "of a class with the module None": NoModule,
    "of a class with a property as module": ModuleIsAProperty,
    "of a class with a slot as module": ModuleIsASlot,
    "of a metaclass that raises for any name": OfMeta,
    "of a metaclass that answers to any name": OfMetaAnswers,
    "of a metaclass that lies": OfMetaLies,
    "of a metaclass that cannot be hashed": OfMetaUnhashable,
    "a class of a metaclass that raises": lambda: OfMeta,
    "a class of a metaclass that cannot be hashed": lambda: OfMetaUnhashable,
    "list": lambda: HostileList([1]),
    "dict": lambda: HostileDict(a=1),
    "tuple": lambda: HostileTuple((1,)),
    "deque": lambda: HostileDeque([1]),
    "named tuple": lambda: HostilePair(1, 2),
    "partial": lambda: HostilePartial(abs, 1),
    "str": lambda: HostileStr("a"),
    "int": lambda: HostileInt(1),
    "slots that are not set": UnsetSlots,
    "dataclass": OfFields,
    "enum": lambda: Color.RED,
    "lazy object that cannot be made": lambda: LazyObject(fail),
    "lazy object": lambda: LazyObject(lambda: [1]),
    "wrapt": lambda: wrapt.ObjectProxy([1]),
    "wrapt, half made": half_made,
    "wrapt, lazy": lambda: wrapt.LazyObjectProxy(fail),
    "lazy_object_proxy": lambda: lazy_object_proxy.Proxy(fail),
    "werkzeug, not bound": lambda: LocalProxy(fail),
    "proxy of what is dead": dead,
    "reference to what is dead": lambda: weakref.ref(UnsetDict()),
    "list in itself": cyclic_list,
    "dict in itself": cyclic_dict,
    "deep list": deep,
    "hostile keys": hostile_keys,
    "attributes that are not names": not_a_name,
    "MagicMock": MagicMock,
    "Mock": Mock,
    "NonCallableMagicMock": NonCallableMagicMock,
    "generator that cannot give its state": lambda: HostileRandom(3),
    "generator of bits that cannot give their state": lambda: np.random.Generator(HostileBits(3)),
    "generator of torch without a device": HostileTorchGenerator,
    "SystemRandom": random.SystemRandom,
    "tensor": lambda: torch.ones(3).as_subclass(HostileTensor),
    "array of objects": of_objects,
    "module": lambda: HostileModule("hostile"),
    "ctypes": lambda: [Structure(), (ctypes.c_int * 3)(), ctypes.POINTER(ctypes.c_int)(), ctypes.CDLL(None)],
    "function": odd_function,
    "function of odd globals": of_odd_globals,
    "generator that runs": running,
    "h5py": h5,
    "h5py, closed": closed_h5,
    "pandas": lambda: [pd.Timestamp(0), frame(), pd.NA, pd.NaT],
    "class of Cython": lambda: FrozenList([Untouchable()]),
    "lock and file": lambda: [threading.Lock(), io.StringIO(), sys.stdout],
    "SimpleNamespace": lambda: types.SimpleNamespace(inside=Untouchable()),
    "set": lambda: {1, Pair(1, 2)},
    "mapping proxy": lambda: types.MappingProxyType({"a": Untouchable()}),
    "an integer of too many digits": lambda: 10**5000,
    "a text that cannot be encoded": lambda: "\ud800",
}
