"""Runs a user's code for a command: what that prints goes to standard error, what it raises becomes one message."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

from resumable._selfcheck.scripts import loading, raised
from resumable.errors import ConfigurationError, ResumableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["users_function"]


@contextlib.contextmanager
def users_function(spec: str, words: Sequence[str]) -> Iterator[Callable[[], Any]]:
    """Give the function of a spec.

    Args:
        spec: such as "train.py:make_loader".
        words: for the `sys.argv` of its script.

    Raises:
        ConfigurationError: whatever went wrong that has no error of this package.
    """
    try:
        with _diverted(), contextlib.redirect_stdout(sys.stderr), loading(spec, words) as make:
            yield make
    except ResumableError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigurationError(raised("the command", error)) from error


@contextlib.contextmanager
def _diverted() -> Iterator[None]:
    """Send file descriptor 1 where 2 goes, for what writes past `sys.stdout`, such as programs that are started."""
    streams = [stream for stream in (sys.stdout, sys.__stdout__) if stream is not None and not stream.closed]
    try:
        saved = os.dup(1)
    except OSError:  # it is closed
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
