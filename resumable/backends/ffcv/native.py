"""FFCV's C functions for compiled code, referred to by name instead of by address.

FFCV calls them through ctypes, which puts their addresses into the compiled code: they would be wrong in every other
process, so Numba refuses to keep such code. Names are looked up when kept code is loaded.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import llvmlite.binding as llvm
from ffcv import libffcv
from numba.core.types import ExternalFunction
from numba.core.typing.ctypes_utils import from_ctypes

__all__ = ["define_natives", "with_named_natives"]

_FUNCTIONS = ("imdecode", "resize", "my_memcpy")


def is_native(value: Any) -> bool:
    """Tell whether a value is one of FFCV's C functions."""
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
