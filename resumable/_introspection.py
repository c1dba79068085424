"""Inspects users' objects, which may do anything in the meantime.

`module_of`, `mro_of`, `members_of` and `attributes_of` read a class and the attributes that an object stores past all
code of the user: no property, no `__getattribute__` and no metaclass runs. `ask` asks for an attribute if a user's code
is meant to answer, such as a `__getattr__` that delegates; `survive` calls anything else that may run such code. If
that raises, it counts as missing, and the log says so. Only `KeyboardInterrupt` and `SystemExit` pass, because signals
raise them.
"""

from __future__ import annotations

import ctypes
import inspect
from functools import cache
from logging import getLogger
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = [
    "ask",
    "attributes_of",
    "has",
    "in_words",
    "is_a",
    "is_exactly",
    "length_or_none",
    "members_of",
    "module_of",
    "mro_of",
    "offers",
    "package_of",
    "qualname_of",
    "shorten",
    "signature_of",
    "survive",
    "takes",
]

T = TypeVar("T")

_OF_TYPES = type.__dict__  # its descriptors read a class; if the class itself is asked, a metaclass can answer
_MODULE, _QUALNAME, _MRO, _MEMBERS = (_OF_TYPES[name] for name in ("__module__", "__qualname__", "__mro__", "__dict__"))
_NO_NAME = "resumable_asks_for_a_name_that_nothing_has"
_OURS = "resumable_"
_MISSING: Any = object()
_WIDTH = 200  # of a value in a message
_MOST = 1000  # places that the log has told

# The C function that reads the attributes of an object whose class may define `__dict__` differently. Its argument
# types are not declared, because ctypes would ask the object whether it has them.
_attributes = ctypes.pythonapi.PyObject_GenericGetDict
_attributes.restype = ctypes.py_object

_log = getLogger("resumable")
_told: set[tuple[str, str]] = set()


def module_of(kind: type) -> str:
    """Return the name of the module of a class; an empty one if the class has something else there."""
    try:
        found = _MODULE.__get__(kind)
    except AttributeError:
        return ""
    return found if type(found) is str else ""


def package_of(kind: type) -> str:
    """Return the first part of the name of a class's module."""
    return module_of(kind).partition(".")[0]


def qualname_of(kind: type) -> str:
    """Return the qualified name of a class."""
    name: str = _QUALNAME.__get__(kind)
    return name


def mro_of(kind: type) -> tuple[type, ...]:
    """Return a class and its bases."""
    bases: tuple[type, ...] = _MRO.__get__(kind)
    return bases


def members_of(kind: type) -> Mapping[str, Any]:
    """Return what a class itself has, its bases apart."""
    members: Mapping[str, Any] = _MEMBERS.__get__(kind)
    return members


def attributes_of(thing: Any) -> dict[Any, Any]:
    """Return the attributes that are stored in an object, those in slots apart; an empty dict if it can have none."""
    if issubclass(type(thing), type):
        return dict(members_of(thing))
    try:
        found: dict[Any, Any] = _attributes(ctypes.py_object(thing), None)
    except AttributeError:
        return {}
    return found


def survive(where: str | None, look: Callable[[], T], otherwise: T) -> T:
    """Return the result of inspecting a user's object, or a default if that raises.

    Args:
        where: the object, for the log; None if the caller reports it.
        look: inspects it.
        otherwise: the default.
    """
    try:
        return look()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001  # a user's object raises whatever it likes
        if where is not None:
            _tell(where, error)
        return otherwise


def ask(thing: Any, name: str, default: Any = None) -> Any:
    """Return an attribute of a user's object or class, or a default if it has none.

    An attribute that raises counts as missing. If `__getattr__` answers to any name, only attributes count that the
    object or its class stores. A name such as `resumable_identity` is meant for this package: anything that it raises
    is raised unchanged.
    """
    try:
        found = getattr(thing, name, default)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        if name.startswith(_OURS) and _stores(thing, name):
            raise
        _tell(f"the attribute {name} of a {qualname_of(type(thing))}", error)
        return default
    if found is default or not _answers_to_any_name(thing) or _stores(thing, name):
        return found
    return default


def has(thing: Any, name: str) -> bool:
    """Return whether a user's object or class has an attribute, also if it raises when it is asked."""
    return ask(thing, name, _MISSING) is not _MISSING or _stores(thing, name)


def is_a(thing: Any, kinds: Any) -> bool:
    """Return whether a user's object is of a class, or says so; if asking raises, its real class counts."""
    found = survive(f"the class of a {qualname_of(type(thing))}", lambda: isinstance(thing, kinds), None)
    if found is None:
        known = kinds if type(kinds) is tuple else (kinds,)
        return any(base is kind for base in mro_of(type(thing)) for kind in known)
    return found


def is_exactly(thing: Any, kinds: Iterable[type]) -> bool:
    """Return whether a user's object is of one of some classes itself; a set would ask its metaclass for a hash."""
    own = type(thing)
    for kind in kinds:  # noqa: SIM110  # in half the time of any()
        if own is kind:
            return True
    return False


def length_or_none(thing: Any) -> int | None:
    """Return the length of a user's object; None if it has none, or raises when it is asked."""
    return survive(f"the length of a {qualname_of(type(thing))}", lambda: _length(thing), None)


def in_words(error: BaseException) -> str:
    """Return the class and the message of an error, as far as it can be printed."""
    kind = qualname_of(type(error))
    return survive(None, lambda: f"{kind}: {error}", f"{kind}, which cannot be printed")


def _length(thing: Any) -> int | None:
    try:
        return len(thing)
    except (TypeError, NotImplementedError):  # the usual ways to have none
        return None


def signature_of(function: Any) -> inspect.Signature | None:
    """Return what a user's function can be called with; None if it does not tell, as some that are made in C."""
    return survive(f"the parameters of a {qualname_of(type(function))}", lambda: _signature(function), None)


def _signature(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # what it raises for those
        return None


def takes(function: Any, *arguments: Any) -> bool | None:
    """Return whether a user's function can be called with some arguments; None if it does not tell."""
    signature = signature_of(function)
    if signature is None:
        return None
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def _stores(thing: Any, name: str) -> bool:
    own = mro_of(thing) if issubclass(type(thing), type) else ()
    return any(name in members_of(kind) for kind in (*own, *mro_of(type(thing)))) or name in attributes_of(thing)


def _answers_to_any_name(thing: Any) -> bool:
    try:
        return getattr(thing, _NO_NAME, _MISSING) is not _MISSING
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001  # a user's object raises whatever it likes; this one tells names apart
        return False


def _tell(where: str, error: BaseException) -> None:
    """Log once that inspecting an object raised an error."""
    kind = qualname_of(type(error))
    if (where, kind) in _told or len(_told) >= _MOST:
        return
    _told.add((where, kind))
    _log.warning("inspecting %s raised %s; it counts as missing", where, in_words(error))


def shorten(value: Any, show: Any = repr) -> str:
    """Return a value in the width of a message."""
    # Integers have a limit of digits, and a user's object raises whatever it likes.
    text = survive(None, lambda: _shown(value, show), f"a {qualname_of(type(value))} that cannot be printed")
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."


def _shown(value: Any, show: Any) -> str:
    try:
        return str(show(value))
    except RecursionError:
        return f"a {qualname_of(type(value))} of too many levels"


@cache
def _members(protocol: type[Any]) -> tuple[str, ...]:
    return tuple(name for name in dir(protocol) if not name.startswith("_"))


def offers(thing: object, protocol: type[T]) -> TypeGuard[T]:
    """Return whether a thing has all members of a protocol: `isinstance`, in a tenth of its 20 µs."""
    return all(hasattr(thing, name) for name in _members(protocol))  # type: ignore[arg-type]  # a class is hashable
