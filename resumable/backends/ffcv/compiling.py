"""Compiles functions with FFCV's options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["compile_function"]


def compile_function(function: Callable[..., Any], *, parallel: bool = False) -> Any:
    """Compile what an operation's `generate_code` returned, at the first call and in the thread that calls.

    Args:
        function: a Python function; what it closes over may be compiled already.
        parallel: whether Numba runs loops that are marked for it in parallel. That takes twice as long to compile.
    """
    dispatcher = numba.njit(fastmath=True, nogil=True, error_model="numpy", parallel=parallel)(function)
    dispatcher.overloads = {}  # Numba's ordered one fails where FFCV changes types that are keys of it
    return dispatcher
