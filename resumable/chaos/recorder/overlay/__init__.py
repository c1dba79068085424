"""What a watched process writes outside of its case goes into it: it reads the machine's files, and changes none.

    <case>/                                       inside: nothing is different
    <case>/outside/files/<absolute path>          what was written to that path
    <case>/outside/gone/<absolute path>/...       that path was removed, renamed or replaced: the real one is not seen
    <case>/outside/temporary/<absolute path>/...  `tempfile` made it: left where it is, as programs in C use it, too
    <case>/outside/checkpoints/<absolute path>/.. a checkpoint was written there: no exemption holds for it

*Real*: a path of the machine, without links. *Shown*: the file that a process sees under a real path: the one that the
case wrote, or else the machine's. A file of the machine is copied before it is changed. A process that is started again
in the same case sees what the one before it wrote, as all of this is on the disk.

`sys.addaudithook` refuses what Python's own functions would change past this. Nothing here may import `resumable`: it
is loaded by itself before the first line of every Python process of the command (`startup/sitecustomize.py`). So
names are imported from modules, and no modules from packages: Python would import the top of the package for those.
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
    """Put the functions into place that look where a path leads to. Until `start` they do what they always did."""
    if not STATE.installed:
        STATE.installed = True
        install_calls()
        install_libraries()
        install_audit()


def start(path: str) -> None:
    """Redirect what this process writes, from now on.

    Args:
        path: of the plan: a JSON file with the directory of the ledgers and that of the case.
    """
    if STATE.view is None:
        descriptor = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
        with open(descriptor, encoding="utf-8") as file:
            plan = json.load(file)
        STATE.ledger = plan["directory"]
        STATE.view = View(plan["case"])
        install()
