"""Keeps compiled functions on disk: compiling is by far the longest part of a restart.

A file holds one function for one signature and one processor. Its name is a digest of what the function computes, of
the versions of everything that compiles it, and of the processor, so that other code never has the same name. A file
that is torn or altered does not match its checksum, and the function is compiled anew.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import pickle
import platform
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import numba
from numba.core import caching, compiler, config
from numba.core.serialize import dumps

from resumable.backends.ffcv.code_key import hash_of_file

__all__ = ["CodeCache", "default_folder"]

_CHECKSUM = 16
_PACKAGES = ("ffcv", "numba", "llvmlite", "numpy")
_SETTINGS = ("OPT", "BOUNDSCHECK", "LOOP_VECTORIZE", "SLP_VECTORIZE", "USING_SVML", "DEBUGINFO_DEFAULT", "CPU_NAME")


def default_folder() -> Path:
    """Return `resumable/ffcv` below `NUMBA_CACHE_DIR`, `XDG_CACHE_HOME` or `~/.cache`."""
    root = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "resumable", "ffcv")


class CodeCache(caching._Cache):  # type: ignore[misc]  # noqa: SLF001  # Numba's interface, which it gives no public name
    """What Numba asks for a function's compiled form before it compiles, and gives it to afterwards.

    Args:
        folder: where the files are; made when the first one is written.
        key: digest of what the function computes.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._folder, self._key = folder, key

    @property
    def cache_path(self) -> str:
        """Folder of the files."""
        return str(self._folder)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function for a signature, or None."""
        target_context.refresh()
        try:
            content = self._file(sig, target_context).read_bytes()
        except OSError:
            return None
        checksum, payload = content[:_CHECKSUM], content[_CHECKSUM:]
        if checksum != _checksum(payload):
            return None
        return compiler.CompileResult._rebuild(target_context, *pickle.loads(payload))  # noqa: S301, SLF001  # as Numba's own cache does

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write a compiled function, unless it refers to addresses of this process; a full disk is no error."""
        if data.library.has_dynamic_globals or data.lifted:
            return
        payload = dumps(data._reduce())  # noqa: SLF001  # as Numba's own cache does
        file = self._file(sig, data.target_context)
        draft = file.with_suffix(f".{uuid4().hex[:16]}")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.write_bytes(_checksum(payload) + payload)
            draft.replace(file)
        except OSError:
            with suppress(OSError):
                draft.unlink(missing_ok=True)

    def enable(self) -> None:
        """Numba's interface."""

    def disable(self) -> None:
        """Numba's interface."""

    def flush(self) -> None:
        """Numba's interface."""

    def _file(self, signature: Any, target_context: Any) -> Path:
        parts = (self._key, str(signature), repr(target_context.codegen().magic_tuple()), _environment())
        return self._folder / (hashlib.blake2b("\n".join(parts).encode(), digest_size=20).hexdigest() + ".code")


@lru_cache(maxsize=1)
def _environment() -> str:
    """Tell everything that decides how a function is compiled, besides the function and the processor."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
    settings = [f"{name} {getattr(config, name, None)}" for name in _SETTINGS]
    ours = [hash_of_file(str(file)).hex() for file in sorted(Path(__file__).parent.glob("*.py"))]
    python = f"{platform.python_implementation()} {sys.version}"
    return "\n".join([python, numba.__file__, *versions, *settings, *ours])


def _checksum(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_CHECKSUM).digest()
