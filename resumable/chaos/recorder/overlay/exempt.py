"""What a process may write outside of its case, as other programs look for it there: devices, caches, temporary files.

Checkpoints are never exempt, whatever directory they are in: those of a store, what `torch.save` writes, and files
whose names end as those of checkpoints do.
"""

from __future__ import annotations

import os
import sys

from resumable.chaos.recorder.overlay.marks import Marks

__all__ = ["CHECKPOINTS", "Exempt"]

CHECKPOINTS = (".ckpt", ".pt", ".pth", ".distcp", ".safetensors")
_SYSTEM = ("/dev/", "/proc/", "/sys/")
_MEMORY = "/dev/shm/"  # noqa: S108  # where checkpoints may be
_COMPILED = "/__pycache__/"
_TEMPORARY = ("TMPDIR", "TEMP", "TMP")
_CACHES = (
    *("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME"),
    *("NUMBA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "PYTHONPYCACHEPREFIX"),
)


class Exempt:
    """Knows the paths that are exempt.

    Args:
        outside: the directory for what is known of paths outside of the case.
    """

    def __init__(self, outside: str) -> None:
        self.temporary, self.checkpoints = Marks(f"{outside}/temporary"), Marks(f"{outside}/checkpoints")
        home = os.path.expanduser("~")
        folders = [os.environ.get(name) for name in _CACHES] + [f"{home}/.cache", f"{home}/.triton"]
        self._roots = tuple(f"{root}/" for root in {os.path.realpath(one) for one in folders if one})

    def covers(self, real: str) -> bool:
        """Return whether a path is exempt."""
        if real.startswith(_SYSTEM) and not real.startswith(_MEMORY):  # `torch.save` to /dev/null, too
            return True
        if self._is_in_a_cache(real):
            return not real.endswith(CHECKPOINTS) and not self.checkpoints.covers(real)
        return self.temporary.covers(real)

    def is_new_temporary(self, real: str) -> bool:
        """Return whether `tempfile` may make a file there for itself: in its own directory, or in one that it made."""
        directory = os.path.dirname(real)
        known: str | bytes | None = getattr(sys.modules.get("tempfile"), "tempdir", None)
        # Before it knows its directory, it tries where it can write.
        own = [os.fsdecode(known)] if known else [*map(os.environ.get, _TEMPORARY), "/tmp", "/var/tmp"]  # noqa: S108
        return directory in {os.path.realpath(one) for one in own if one} or self.temporary.covers(directory)

    def _is_in_a_cache(self, real: str) -> bool:
        return f"{real}/".startswith((_MEMORY, *self._roots)) or "/torchinductor_" in real

    @staticmethod
    def is_compiled(real: str) -> bool:
        """Return whether Python keeps compiled modules there: it writes them itself, by functions not replaced."""
        return _COMPILED in f"{real}/"
