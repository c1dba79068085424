"""Paths outside the case that a process may write, because other programs use them: devices, caches, temporary files.

Checkpoints are never exempt, in any directory: checkpoints of a store, files that `torch.save` writes, and files with
the suffix of a checkpoint.
"""

from __future__ import annotations

import os
import sys

from resumable.chaos.recorder.overlay.marks import Marks

__all__ = ["CHECKPOINTS", "Exempt"]

CHECKPOINTS = (".ckpt", ".pt", ".pth", ".distcp", ".safetensors")
_SYSTEM = ("/dev/", "/proc/", "/sys/")
_MEMORY = "/dev/shm/"  # noqa: S108  # may contain checkpoints
_COMPILED = "/__pycache__/"
_TEMPORARY = ("TMPDIR", "TEMP", "TMP")
_CACHES = (
    *("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME"),
    *("NUMBA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "PYTHONPYCACHEPREFIX"),
)


class Exempt:
    """Knows the exempt paths.

    Args:
        outside: the directory for marks of paths outside the case.
    """

    def __init__(self, outside: str) -> None:
        self.temporary, self.checkpoints = Marks(f"{outside}/temporary"), Marks(f"{outside}/checkpoints")
        home = os.path.expanduser("~")
        folders = [os.environ.get(name) for name in _CACHES] + [f"{home}/.cache", f"{home}/.triton"]
        self._roots = tuple(f"{root}/" for root in {os.path.realpath(one) for one in folders if one})

    def covers(self, real: str) -> bool:
        """Return whether a path is exempt."""
        if real.startswith(_SYSTEM) and not real.startswith(_MEMORY):  # including `torch.save` to /dev/null
            return True
        if self._is_in_a_cache(real):
            return not real.endswith(CHECKPOINTS) and not self.checkpoints.covers(real)
        return self.temporary.covers(real)

    def is_new_temporary(self, real: str) -> bool:
        """Return whether `tempfile` may create a file there: in its own directory, or in one that it created."""
        directory = os.path.dirname(real)
        known: str | bytes | None = getattr(sys.modules.get("tempfile"), "tempdir", None)
        # Before it has chosen its directory, it tries several.
        own = [os.fsdecode(known)] if known else [*map(os.environ.get, _TEMPORARY), "/tmp", "/var/tmp"]  # noqa: S108
        return directory in {os.path.realpath(one) for one in own if one} or self.temporary.covers(directory)

    def _is_in_a_cache(self, real: str) -> bool:
        return f"{real}/".startswith((_MEMORY, *self._roots)) or "/torchinductor_" in real

    @staticmethod
    def is_compiled(real: str) -> bool:
        """Return whether Python stores compiled modules there, which it writes with functions that are not replaced."""
        return _COMPILED in f"{real}/"
