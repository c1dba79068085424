"""Wraps functions that write and read checkpoints, to report content and path to `STATE.saves`, if there is one."""

from __future__ import annotations

import functools
import os
from typing import Any

from resumable.chaos.recorder.overlay.state import STATE

__all__ = ["told_of", "told_of_load"]


def told_of(function: Any, content: str, path: str, *, torn: bool = False) -> Any:
    """Report each call of a function that writes a checkpoint, once it is written.

    Args:
        function: writes the checkpoint; nested calls of such functions are not reported.
        content: name of its first parameter.
        path: name of its second one: a path, or an open file.
        torn: whether it writes the file directly under its final name, so a kill can leave half of it.
    """

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if STATE.view is None or STATE.saves is None or STATE.local.saving:
            return function(*args, **options)
        STATE.local.saving += 1
        try:
            result = function(*args, **options)
        finally:
            STATE.local.saving -= 1
        given = dict(zip((content, path), args, strict=False)) | options
        STATE.saves.saved(given.get(content), given.get(path), torn=torn)
        return result

    return call


def told_of_load(function: Any) -> Any:
    """Report each call of a function that reads a checkpoint from its first argument."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        if STATE.view is not None and STATE.saves is not None:
            given = args[0] if args else options.get("f")
            name = given if isinstance(given, (str, os.PathLike)) else getattr(given, "name", None)
            STATE.saves.loaded(name if isinstance(name, (str, os.PathLike)) else None, result)
        return result

    return call
