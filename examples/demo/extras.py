"""The demo's requirements beyond the library itself."""

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
    """Verify that everything is installed.

    Raises:
        MissingDependencyError: something is not installed; the message contains the install command.
        UnsupportedError: the system cannot fork processes.
    """
    if not hasattr(os, "fork"):
        raise UnsupportedError("the demo forks processes and kills them in groups.\nRun it on Linux or macOS.")
    missing = [package for module, package in _NEEDED.items() if find_spec(module) is None]
    if missing:
        raise MissingDependencyError(
            f"the demo needs {', '.join(missing)}, which cannot be imported here.\n"
            f"Install the demo's requirements: {pip_install('demo')}"
        )
