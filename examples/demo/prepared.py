"""The folder for the demo's prepared data, shared by all processes and by C libraries that read it."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["prepared"]


def prepared(name: str) -> Path:
    """Return the path of a file or folder in the user's cache directory, `XDG_CACHE_HOME` or `~/.cache`."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "resumable", "demo")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name
