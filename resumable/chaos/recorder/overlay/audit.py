"""The backstop: a call that would change a file outside the case and was not redirected ends the process.

Python announces each such call to `sys.addaudithook`, no matter which module makes it. That includes modules that
stored a function before it was replaced, or call one that is not replaced.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from resumable.chaos.recorder.overlay.opening import WRITING
from resumable.chaos.recorder.overlay.state import STATE

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable.chaos.recorder.overlay.view import View

__all__ = ["install"]


def _opened(path: Any, _: Any, flags: Any) -> list[tuple[Any, Any]]:
    is_new = isinstance(flags, int) and flags & WRITING and not isinstance(path, int)
    return [(path, -1)] if is_new else []


# The changed paths, and the directories they are relative to, in the arguments of each event.
_EVENTS: dict[str, Callable[..., list[tuple[Any, Any]]]] = {
    "open": _opened,
    "os.remove": lambda path, at: [(path, at)],
    "os.rmdir": lambda path, at: [(path, at)],
    "os.mkdir": lambda path, _, at: [(path, at)],
    "os.rename": lambda source, target, at, to: [(source, at), (target, to)],
    "os.link": lambda source, target, at, to: [(source, at), (target, to)],
    "os.symlink": lambda _, path, at: [(path, at)],
    "os.truncate": lambda path, _: [(path, -1)],
    "os.chmod": lambda path, _, at: [(path, at)],
    "os.chown": lambda path, _, __, at: [(path, at)],
    "os.utime": lambda path, _, __, at: [(path, at)],
    "os.chflags": lambda path, _: [(path, -1)],
    "os.setxattr": lambda path, *_: [(path, -1)],
    "os.removexattr": lambda path, *_: [(path, -1)],
}


def install() -> None:
    """Install the hook; Python cannot remove it."""
    sys.addaudithook(_hear)


def _hear(event: str, args: tuple[Any, ...], events: Any = _EVENTS, state: Any = STATE) -> None:
    """Check an event. The tables are defaults, because a module's names are gone when the interpreter ends."""
    changed = events.get(event)
    if changed is None or state.view is None or state.local.trusted:
        return
    for path, at in changed(*args):
        if path is not None:
            _judge(state.view, event, path, at)


def _judge(view: View, event: str, given: Any, at: Any) -> None:
    path = f"/proc/self/fd/{given}" if isinstance(given, int) else given
    with STATE.trusted():
        if isinstance(given, int):
            real = os.path.realpath(path)  # of an open file: a copy of the case is not mistaken for the original
        else:
            real = view.find(path, at if isinstance(at, int) and at >= 0 else None, follow=event == "open").real
        if view.is_redirected(real) and not view.exempt.is_compiled(real):
            STATE.refuse(
                f"the command would have changed {os.fsdecode(path)} with a function that is not redirected: {event}.\n"
                f"  the run's directory: {view.case}\nThis could have damaged a real run, so it was stopped. Write to "
                "a relative path, which leads to a new directory, or to {dir}."
            )
