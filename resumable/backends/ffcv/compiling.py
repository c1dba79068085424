"""Compiles functions the way FFCV does, so that their compiled form can be kept for the next process."""

from __future__ import annotations

import ctypes
import types
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import llvmlite.binding as llvm
import numba
from ffcv import libffcv
from numba.core.dispatcher import Dispatcher
from numba.core.types import ExternalFunction
from numba.core.typing.ctypes_utils import from_ctypes

from resumable.backends.ffcv.code_cache import CodeCache
from resumable.backends.ffcv.code_key import NoKeyError, code_key, fixed_signatures

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["CodeMaker"]

# By content, for all Loaders of this process: Numba never gives the memory of compiled code back.
_compiled: dict[tuple[Path | None, str], Any] = {}
_OPTIONS: dict[str, Any] = {"nopython": True, "fastmath": True, "nogil": True, "error_model": "numpy"}


class CodeMaker:
    """Compiles functions, lazily: Numba does it at the first call, in the thread that calls.

    Args:
        folder: where compiled functions are kept; None to keep none.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._made: dict[int, tuple[Any, Any]] = {}
        define_natives()

    def compile(self, function: Callable[..., Any], *, parallel: bool = False) -> Any:
        """Compile what an operation's `generate_code` returned.

        Args:
            function: a Python function; what it closes over may be compiled already.
            parallel: whether Numba runs loops that are marked for it in parallel. That takes twice as long to compile.
        """
        return self._compile(function, {**_OPTIONS, "parallel": parallel})

    def _compile(self, function: Any, options: dict[str, Any], signatures: tuple[Any, ...] = ()) -> Any:
        function = self._again(function, parallel=options.get("parallel", False))
        try:
            key = code_key(function)
        except NoKeyError:
            return self._make(function, options, signatures, None)
        # Numba makes the names of compiled functions from the Python name and a count that begins in each process.
        # With its content in the name, code that was kept never has the name of other code.
        function.__qualname__ = f"{function.__name__}_{key}"
        name = f"{key} {sorted(options.items())} {signatures}"
        dispatcher = _compiled.get((self._folder, name))
        if dispatcher is None:
            dispatcher = _compiled[self._folder, name] = self._make(function, options, signatures, name)
        return dispatcher

    def _make(self, function: Any, options: dict[str, Any], signatures: tuple[Any, ...], name: str | None) -> Any:
        dispatcher = numba.jit(**options)(function)
        dispatcher.overloads = {}  # Numba's ordered one fails where FFCV changes types that are keys of it
        if self._folder is not None and name is not None:
            dispatcher._cache = CodeCache(self._folder, name)  # noqa: SLF001  # what enable_caching() does
        for signature in signatures:
            dispatcher.compile(signature)
        if signatures:
            dispatcher.disable_compile()
        return dispatcher

    def _again(self, function: Any, *, parallel: bool) -> Any:
        """Copy a function, with the compiled functions that it closes over compiled by this object, too.

        Where nothing is parallel, the loops that FFCV marked for it are plain ones, so that the code (and what is kept
        of it) is the same for any number of workers.
        """
        values = [self._value(cell.cell_contents) for cell in function.__closure__ or ()]
        cells = tuple(types.CellType(range if value is numba.prange and not parallel else value) for value in values)
        code = function.__code__
        namespace = with_named_natives(function.__globals__, code.co_names)
        copy = types.FunctionType(code, namespace, function.__name__, function.__defaults__, cells)
        copy.__kwdefaults__ = function.__kwdefaults__
        copy.__module__ = function.__module__
        return copy

    def _value(self, value: Any) -> Any:
        if not isinstance(value, Dispatcher) or value in _compiled.values():
            return value
        if id(value) not in self._made:  # kept beside its copy, so that no other object gets its address
            compiled = self._compile(value.py_func, dict(value.targetoptions), fixed_signatures(value))
            self._made[id(value)] = value, compiled
        return self._made[id(value)][1]


# FFCV calls its C functions through ctypes, which puts their addresses into compiled code: they would be wrong in every
# other process, so Numba refuses to keep such code. Names are looked up when kept code is loaded.
_FUNCTIONS = ("imdecode", "resize", "my_memcpy")


def is_native(value: Any) -> bool:
    """Return whether a value is one of FFCV's C functions."""
    return any(value is getattr(libffcv.lib, name, None) for name in _FUNCTIONS)


def with_named_natives(namespace: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return a function's globals, with FFCV's C functions among `names` replaced by references to their names."""
    natives = {name: _by_name(namespace[name].__name__) for name in names if is_native(namespace.get(name))}
    return {**namespace, **natives} if natives else namespace


@lru_cache(maxsize=8)
def _by_name(name: str) -> Any:
    function = getattr(libffcv.lib, name)
    symbol = f"resumable_ffcv_{name}"
    llvm.add_symbol(symbol, ctypes.cast(function, ctypes.c_void_p).value)
    external: Any = ExternalFunction(symbol, from_ctypes(function.restype)(*map(from_ctypes, function.argtypes)))
    external.resumable_key = symbol
    return external


def define_natives() -> None:
    """Define all names, as code that was kept by an earlier process refers to them, and LLVM ends a process without."""
    for name in _FUNCTIONS:
        _by_name(name)
