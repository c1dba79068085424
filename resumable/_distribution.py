"""The name of this package on PyPI, and the unrelated project that has the name of its import."""

from __future__ import annotations

import os
import warnings

from resumable.errors import PromiseWarning

__all__ = ["DISTRIBUTION", "UPGRADE", "other_project", "pip_install", "warn_of_other_project"]

DISTRIBUTION = "resumable-data"  # `resumable` on PyPI is an unrelated project
UPGRADE = f"pip install --upgrade {DISTRIBUTION}"
_OTHER = "resumable"

_warned = False


def pip_install(*extras: str) -> str:
    """Return the command that installs these extras."""
    return f'pip install "{DISTRIBUTION}[{",".join(extras)}]"'


def other_project() -> str:
    """Describe the unrelated project that is installed in the folder of this package; empty if there is none.

    Both own `resumable/__init__.py`. The metadata of a package is a folder next to it, so one look is enough:
    `importlib.metadata` takes longer to import than this package.
    """
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  # at each import
    try:
        names = os.listdir(folder)  # noqa: PTH208  # the same
    except OSError:  # such as a zip file
        return ""
    start = f"{_OTHER}-"
    found = [name for name in names if name.startswith(start) and name.endswith((".dist-info", ".egg-info"))]
    version = next((name[len(start) :].rpartition(".")[0] for name in found if name[len(start)].isdigit()), None)
    if version is None:
        return ""
    return (
        f"the unrelated project {_OTHER!r} {version} is installed in the same folder: {folder}.\n"
        f"Both projects contain {_OTHER}/__init__.py, so each overwrites a part of the other, and uninstalling one "
        f"breaks the other. Remove both, and install this one again: pip uninstall {_OTHER} {DISTRIBUTION}"
    )


def warn_of_other_project() -> None:
    """Warn once if the unrelated project is installed."""
    global _warned  # noqa: PLW0603  # once per process
    if not _warned and (told := other_project()):
        _warned = True
        warnings.warn(told, PromiseWarning, stacklevel=3)
