"""What makes files durable, besides an fsync of their own."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["sync_directory"]

_NO_FSYNC = (errno.EINVAL, errno.ENOTSUP)  # from file systems that know no fsync of a directory


def sync_directory(directory: str | Path) -> None:
    """Make the names in a directory durable, where the system can."""
    if os.name == "nt":  # Windows cannot open a directory, and keeps the order of its metadata by itself
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            raise
    finally:
        os.close(descriptor)
