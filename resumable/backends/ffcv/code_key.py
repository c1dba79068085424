"""What a function computes, as a digest: the key under which its compiled form is kept.

Everything that reaches the compiled code is in it: bytecode, constants, defaults, what the function closes over, the
globals that it names, and the same of every function that it calls. What cannot be told apart by its content has no
key, and is compiled again in each process.
"""

from __future__ import annotations

import dis
import hashlib
import sys
import types
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NoKeyError", "code_key", "fixed_signatures", "hash_of_file"]

_KNOWN_MODULES = {
    "resumable",
    "numpy",
    "math",
    "random",
    "numba",
    "cmath",
    "operator",
}  # their versions and sources are in the environment's key
_LARGEST = 1_000_000  # bytes of an array: Numba refers to larger ones by their address, and refuses to keep that


class NoKeyError(Exception):
    """Something that the function uses cannot be told by its content."""


def code_key(function: Any) -> str:
    """Return the digest of a Python function or of a function compiled by Numba; 32 hexadecimal digits.

    Raises:
        NoKeyError: it uses something that cannot be told by its content.
    """
    state = hashlib.blake2b(digest_size=16, person=b"resumable1")
    for part in _function(function, set()):
        state.update(f"{len(part)}:".encode() + part)
    return state.hexdigest()


def fixed_signatures(compiled: Any) -> tuple[Any, ...]:
    """Return the signatures of a compiled function that takes no others; none for one that is compiled as needed.

    FFCV changes a type that Numba has hashed already, so that Numba's own list of them may fail to find its entries.
    """
    if compiled._can_compile:  # noqa: SLF001  # no public way
        return ()
    return tuple(each.signature for each in dict.values(compiled.overloads))


def _function(function: Any, seen: set[int]) -> Iterator[bytes]:
    options = getattr(function, "targetoptions", None)
    if options is not None:  # a dispatcher of Numba
        yield repr(sorted((name, repr(value)) for name, value in options.items())).encode()
        yield repr(sorted(map(str, fixed_signatures(function)))).encode()
        function = function.py_func
    if id(function) in seen:
        yield b"seen"
        return
    seen.add(id(function))
    yield from _code(function.__code__)
    yield from _value((function.__defaults__, sorted((function.__kwdefaults__ or {}).items())), seen)
    for cell in function.__closure__ or ():
        yield from _value(cell.cell_contents, seen)
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__:
            yield name.encode()
            yield from _value(function.__globals__[name], seen)


def _code(code: types.CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags)).encode()
    yield repr((code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount)).encode()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant)
        else:
            yield _plain(constant)


def _names(code: types.CodeType) -> set[str]:
    """Return the names of globals, and not those of attributes."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    own = {str(each.argval) for each in dis.get_instructions(code) if each.opname in {"LOAD_GLOBAL", "LOAD_NAME"}}
    return own.union(*map(_names, inner))


def _value(value: Any, seen: set[int]) -> Iterator[bytes]:
    yield type(value).__qualname__.encode()
    if isinstance(value, (tuple, list)):
        yield str(len(value)).encode()
        for item in value:
            yield from _value(item, seen)
    elif isinstance(value, np.ndarray):
        yield _array(value)
    elif isinstance(value, types.FunctionType) or hasattr(value, "py_func"):
        yield from _function(value, seen)
    elif isinstance(value, types.ModuleType):
        yield _module(value)
    elif hasattr(value, "resumable_key"):
        yield value.resumable_key.encode()
    elif callable(value):
        yield _callable(value)
    else:
        yield _plain(value)


def _plain(value: Any) -> bytes:
    """Return a value by its text, if that says all of it."""
    if isinstance(value, (tuple, frozenset)):
        return b"(" + b",".join(map(_plain, sorted(value, key=repr) if isinstance(value, frozenset) else value)) + b")"
    if value is None or value is Ellipsis or isinstance(value, (bool, int, float, complex, str, bytes, np.dtype)):
        return f"{type(value).__name__} {value!r}".encode()
    if isinstance(value, np.generic):
        return f"{value.dtype.str} ".encode() + value.tobytes()
    raise NoKeyError(f"a value of the type {type(value).__qualname__}")


def _array(value: np.ndarray[Any, Any]) -> bytes:
    if value.dtype.hasobject or value.nbytes > _LARGEST:
        raise NoKeyError("a large array")
    layout = f"{value.dtype.descr}{value.shape}{value.flags.c_contiguous}{value.flags.f_contiguous}"
    return f"{layout}{value.flags.writeable} ".encode() + value.tobytes()


def _callable(value: Any) -> bytes:
    """Return a class, a builtin or a method of NumPy's global generator by its name."""
    owner = getattr(value, "__self__", None)
    if isinstance(owner, np.random.RandomState):
        return f"numpy.random {value.__name__}".encode()
    module = getattr(value, "__module__", None) or type(value).__module__
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if name is None or module.partition(".")[0] not in {*_KNOWN_MODULES, "builtins"}:
        raise NoKeyError(f"the object {name or type(value).__qualname__} of {module}")
    if owner is not None and not isinstance(owner, types.ModuleType):
        raise NoKeyError(f"the method {name} of an object")
    return f"{module}.{name}".encode()


def _module(module: types.ModuleType) -> bytes:
    if module.__name__.partition(".")[0] in _KNOWN_MODULES:
        return module.__name__.encode()
    file = getattr(sys.modules.get(module.__name__), "__file__", None)
    if module.__name__.partition(".")[0] == "ffcv" and file is not None:  # its version is in the environment's key
        return module.__name__.encode() + hash_of_file(file)
    raise NoKeyError(f"the module {module.__name__}")


@lru_cache(maxsize=64)
def hash_of_file(file: str) -> bytes:
    """Return the digest of a file's content."""
    return hashlib.blake2b(Path(file).read_bytes(), digest_size=16).digest()
