"""Compiles functions the way FFCV does, so that their compiled form can be kept for the next process."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import numba
from numba.core.dispatcher import Dispatcher

from resumable.backends.ffcv.code_cache import CodeCache
from resumable.backends.ffcv.code_key import NoKeyError, code_key, fixed_signatures
from resumable.backends.ffcv.native import define_natives, with_named_natives

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
        function = self._anew(function, parallel=options.get("parallel", False))
        try:
            key = code_key(function)
        except NoKeyError:
            return self._make(function, options, signatures, None)
        # Numba makes the names of compiled functions from the Python name and a count that begins anew in each process.
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

    def _anew(self, function: Any, *, parallel: bool) -> Any:
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
