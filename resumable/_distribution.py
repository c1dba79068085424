"""The name of this package on PyPI. It is imported as `resumable`."""

from __future__ import annotations

__all__ = ["DISTRIBUTION", "UPGRADE", "pip_install"]

DISTRIBUTION = "resumable-data"  # `resumable` on PyPI is an unrelated project
UPGRADE = f"pip install --upgrade {DISTRIBUTION}"


def pip_install(*extras: str) -> str:
    """Return the command that installs these extras."""
    return f'pip install "{DISTRIBUTION}[{",".join(extras)}]"'
