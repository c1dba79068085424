"""Runs a user's code for a command: its output goes to standard error, and its exceptions become one message."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

from resumable._selfcheck.scripts import loading, raised
from resumable.errors import ConfigurationError, ResumableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["undiverted", "users_function"]


@contextlib.contextmanager
def users_function(spec: str, words: Sequence[str]) -> Iterator[Callable[[], Any]]:
    """Yield the function of a spec.

    Args:
        spec: such as "train.py:make_loader".
        words: for the `sys.argv` of its script.

    Raises:
        ConfigurationError: anything raised that is not an error of this package.
    """
    try:
        with _diverted(), contextlib.redirect_stdout(sys.stderr), loading(spec, words) as make:
            yield make
    except ResumableError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigurationError(raised("the command", error)) from error


@contextlib.contextmanager
def undiverted() -> Iterator[TextIO]:
    """Yield standard output, which a later diversion does not affect."""
    try:
        number = os.dup(sys.stdout.fileno())
    except (OSError, ValueError):  # not a file
        yield sys.stdout
        return
    stream = os.fdopen(number, "w", encoding="utf-8")
    try:
        yield stream
    finally:
        with contextlib.suppress(BrokenPipeError):
            stream.close()


@contextlib.contextmanager
def _diverted() -> Iterator[None]:
    """Redirect file descriptor 1 to 2, for output that bypasses `sys.stdout`, such as from child processes."""
    streams = [stream for stream in (sys.stdout, sys.__stdout__) if stream is not None and not stream.closed]
    try:
        saved = os.dup(1)
    except OSError:  # closed
        yield
        return
    try:
        for stream in streams:
            stream.flush()
        os.dup2(2, 1)
        yield
    finally:
        for stream in streams:
            stream.flush()
        os.dup2(saved, 1)
        os.close(saved)
