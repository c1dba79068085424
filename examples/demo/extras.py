"""What the demo needs beyond the library itself."""

from __future__ import annotations

import os
from importlib.util import find_spec

from resumable.errors import MissingDependencyError, UnsupportedError

from .catalogue import pip_install

__all__ = ["check_extras"]

_NEEDED = {
    "matplotlib": "matplotlib",
    "pytorch_lightning": "pytorch-lightning",
    "rich": "rich",
    "sklearn": "scikit-learn",
    "torch": "torch",
}


def check_extras() -> None:
    """See that everything is there.

    Raises:
        MissingDependencyError: something is not installed; the message has the command that installs it.
        UnsupportedError: the system cannot fork processes.
    """
    if not hasattr(os, "fork"):
        raise UnsupportedError("the demo forks processes and kills them in groups.\nRun it on Linux or macOS.")
    missing = [package for module, package in _NEEDED.items() if find_spec(module) is None]
    if missing:
        raise MissingDependencyError(
            f"the demo needs {', '.join(missing)}, which cannot be imported here.\n"
            f"Install what it needs: {pip_install('demo')}"
        )
