"""The name under which pip knows this package, in one place. It is imported as `resumable`."""

from __future__ import annotations

__all__ = ["DISTRIBUTION", "UPGRADE", "pip_install"]

DISTRIBUTION = "resumable-data"  # `resumable` on PyPI is another project
UPGRADE = f"pip install --upgrade {DISTRIBUTION}"


def pip_install(*extras: str) -> str:
    """Return the command that installs what these extras stand for."""
    return f'pip install "{DISTRIBUTION}[{",".join(extras)}]"'
