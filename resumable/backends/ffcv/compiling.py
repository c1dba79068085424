"""Compiles functions with FFCV's options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["compile_function"]


def compile_function(function: Callable[..., Any], *, parallel: bool = False) -> Any:
    """Compile the result of an operation's `generate_code`, at the first call and in the calling thread.

    Args:
        function: a Python function; functions that it closes over may be compiled already.
        parallel: whether Numba parallelises the loops marked for it, which doubles the compile time.
    """
    dispatcher = numba.njit(fastmath=True, nogil=True, error_model="numpy", parallel=parallel)(function)
    dispatcher.overloads = {}  # Numba's ordered dict fails when FFCV changes types that are its keys
    return dispatcher
