"""Keeps each process of a command in its case: a write anywhere else is rejected before the first byte.

The case's `work` folder mirrors the current folder (`launch/mirror.py`): folders are real, small
files are copies, and large files and folders are links. Python announces each call that changes a file to
`sys.addaudithook`, no matter which module makes it. The hook lets a call pass if it changes something in the case, in a
cache or in the case's folder for temporary files; it replaces a link of the mirror with a copy first. Any other call
ends the process, and the chaos run reports the path and what helps. Writers that announce nothing are
wrapped (`writers.py`).

Not seen are programs other than Python, and libraries that write in C, C++ or Rust and are not wrapped.

Nothing here may import `resumable`: the guard is loaded before the first line of every Python process of the command
(`startup/sitecustomize.py`). So names are imported from modules, and no modules from packages, because Python would
then import the top of the package.
"""

from __future__ import annotations

from resumable.chaos.recorder.guard.files import GUARD, REFUSED, hear
from resumable.chaos.recorder.guard.writers import install as install_writers

__all__ = ["GUARD", "REFUSED", "install", "start"]


def install() -> None:
    """Install the hook, which Python cannot remove, and the guards of writers. Until `start`, they do nothing."""
    import sys  # noqa: PLC0415  # a name of this package would hide it

    if not GUARD.installed:
        GUARD.installed = True
        install_writers()
        sys.addaudithook(hear)


def start(path: str) -> None:
    """Guard this process from now on.

    Args:
        path: of the plan: a JSON file with the directories of the ledgers, the case and the mirrored folder.
    """
    if not GUARD.active:
        install()
        GUARD.start(path)
