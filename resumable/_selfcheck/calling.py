"""Calls of a user's code, and what is said where it raised."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable.errors import ConfigurationError, ResumableError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["call", "ended", "raised"]


def call(make: Callable[[], Any], what: str = "") -> Any:
    """Call a user's function.

    Raises:
        ConfigurationError: it raised; the message has its traceback.
    """
    try:
        return make()
    except ResumableError:
        raise
    except (Exception, SystemExit) as error:
        name = what or getattr(make, "__qualname__", repr(make))
        raise ConfigurationError(raised(f"{name}()", error)) from error


def raised(what: str, error: BaseException) -> str:
    """Say that a user's code raised, with the traceback from its own first line on."""
    frames = traceback.extract_tb(error.__traceback__)
    own = str(Path(__file__).parents[1])
    first = next((number for number, frame in enumerate(frames) if not _is_ours(frame.filename, own)), 0)
    shown = "".join([*traceback.format_list(frames[first:]), *traceback.format_exception_only(error)])
    return f"{what} raised {type(error).__name__}, so nothing could be checked.\n{shown.rstrip()}"


def ended(error: SystemExit) -> str:
    """Say that a script ended itself while it was imported, as argparse does."""
    status = 0 if error.code is None else error.code if isinstance(error.code, int) else 1
    reason = f": {error.code}" if isinstance(error.code, str) else ""
    return (
        f"the script ended itself while it was imported (status {status}){reason}.\n"
        "Nothing was checked. Give it its arguments after two dashes, as in: resumable check train.py:make -- -v. "
        'Or put what is to run in training only below `if __name__ == "__main__":`.'
    )


def _is_ours(file: str, own: str) -> bool:
    return file.startswith((own, "<frozen importlib")) or "importlib" in Path(file).parts
