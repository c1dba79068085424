"""Redirects writes of an observed process into its case: it reads the machine's files, but changes none of them.

    <case>/                                       inside: nothing is redirected
    <case>/outside/files/<absolute path>          the file that was written to that path
    <case>/outside/gone/<absolute path>/...       that path was removed, renamed or replaced: the real file is hidden
    <case>/outside/temporary/<absolute path>/...  created by `tempfile`: not redirected, because C programs use it too
    <case>/outside/checkpoints/<absolute path>/.. a checkpoint was written there: no exemption applies

*Real*: a path on the machine with links resolved. *Shown*: the file that a process sees at a real path: the one that
the case wrote, else the machine's. A file of the machine is copied before it is changed. Everything is on disk, so a
process that is relaunched in the same case sees the files of the previous one.

`sys.addaudithook` stops calls of Python's own functions that bypass this. Nothing here may import `resumable`: the
overlay is loaded separately before the first line of every Python process of the command
(`startup/sitecustomize.py`). So names are imported from modules, and no modules from packages, because Python would
then import the top of the package.
"""

from __future__ import annotations

import json
import posix

from resumable.chaos.recorder.overlay.audit import install as install_audit
from resumable.chaos.recorder.overlay.calls import install as install_calls
from resumable.chaos.recorder.overlay.libraries import install as install_libraries
from resumable.chaos.recorder.overlay.state import STATE
from resumable.chaos.recorder.overlay.view import View

__all__ = ["STATE", "install", "start"]


def install() -> None:
    """Replace the functions that resolve paths. Until `start`, the replacements do nothing different."""
    if not STATE.installed:
        STATE.installed = True
        install_calls()
        install_libraries()
        install_audit()


def start(path: str) -> None:
    """Redirect the writes of this process from now on.

    Args:
        path: of the plan: a JSON file with the directories of the ledgers and of the case.
    """
    if STATE.view is None:
        descriptor = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
        with open(descriptor, encoding="utf-8") as file:
            plan = json.load(file)
        STATE.ledger = plan["directory"]
        STATE.view = View(plan["case"])
        install()
