"""Which versions of other packages work: one table, which `pyproject.toml` repeats and a test compares."""

from __future__ import annotations

import functools
import re
import sys
from typing import NamedTuple

from resumable.errors import MissingDependencyError

__all__ = ["VERSIONS", "Versions", "check_version", "find_old", "tested_with"]


class Versions(NamedTuple):
    """The oldest version that is accepted, and the newest one that was tested."""

    oldest: str
    newest: str


# The reason for each lower bound is in `pyproject.toml`. Newer versions than the newest are accepted.
VERSIONS = {
    "numpy": Versions("1.24", "2.5"),
    "fsspec": Versions("2023.5.0", "2026.9.0"),
    "torch": Versions("2.6", "2.14"),
    "pytorch-lightning": Versions("2.5", "2.6.6"),
    "lightning": Versions("2.5", "2.6.6"),
    "accelerate": Versions("1.10", "1.15"),
    "transformers": Versions("5.20", "5.24"),
    "trl": Versions("1.16", "1.16"),
    "datasets": Versions("5", "5.2"),
    "keras": Versions("3.8", "3.15"),
}


@functools.cache
def check_version(package: str) -> None:
    """Check that the version of a package is not too old. The result is kept for this process.

    Args:
        package: its name on PyPI. It is accepted if its version is unknown, as in a folder without metadata.

    Raises:
        MissingDependencyError: it is too old.
    """
    module = sys.modules.get(package.replace("-", "_"))
    version = getattr(module, "__version__", None)
    if (problem := _too_old(package, version if isinstance(version, str) else _installed(package))) is not None:
        raise MissingDependencyError(problem)


def find_old() -> list[str]:
    """Describe each installed package that is too old."""
    found = (_too_old(package, _installed(package)) for package in VERSIONS)
    return [problem for problem in found if problem is not None]


def tested_with(package: str) -> str:
    """Return the tested versions of a package, for messages."""
    oldest, newest = VERSIONS[package]
    return f"{package} {oldest}" if oldest == newest else f"{package} {oldest} to {newest}"


def _installed(package: str) -> str:
    from importlib import metadata  # noqa: PLC0415  # slow, and not needed if the package is imported

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _too_old(package: str, version: str) -> str | None:
    oldest, found = VERSIONS[package].oldest, _release(version)
    if not found or found >= _release(oldest):
        return None
    return (
        f"{package} {version} is too old: resumable needs {package} {oldest} or newer.\n"
        "Names that it uses are missing there or work differently, so a resume could fail, or lose or repeat batches.\n"
        f'Upgrade: pip install --upgrade "{package}>={oldest}"'
    )


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers that a version starts with, without zeros at the end, so 2.5.0 equals 2.5."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, re.sub(r"(\.0+)+$", "", numbers[0]).split("."))) if numbers else ()
