"""Keeps compiled functions on disk: compiling is by far the longest part of a restart.

A file holds one function for one signature and one processor. Its name is a digest of what the function computes, of
the versions of everything that compiles it, and of the processor, so that other code never has the same name. A file
that is torn or altered does not match its checksum, and the function is compiled again.

A file is code that this process runs. So none is used that another user could have written: files and their folder have
to belong to this user (or to root), and no other user may write them.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import pickle
import platform
import shlex
import stat
import sys
import warnings
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import numba
from numba.core import caching, compiler, config
from numba.core.serialize import dumps

from resumable.backends.ffcv.code_key import hash_of_file
from resumable.errors import PromiseWarning

__all__ = ["CodeCache", "default_folder", "own_folder"]

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
        content = _read_own(self._file(sig, target_context))
        if content is None:
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
            _write_own(draft, _checksum(payload) + payload)
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


def _read_own(file: Path) -> bytes | None:
    """Return the content of a file that no other user could have written; None if there is none."""
    try:
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        if _stranger(file.parent, os.fstat(folder)):
            return None
        with open(os.open(file.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder), "rb") as opened:  # noqa: PTH123  # of a descriptor
            return None if _stranger(file, os.fstat(opened.fileno())) else opened.read()
    except OSError:
        return None
    finally:
        os.close(folder)


def own_folder(folder: Path) -> Path | None:
    """Return a folder to keep code in, or None for one that other users can write to."""
    try:
        status = folder.stat()
    except OSError:  # it is made when the first file is written
        return folder
    return None if _stranger(folder, status, stacklevel=8) else folder


def _stranger(path: Path, status: os.stat_result, stacklevel: int = 2) -> bool:
    """Return whether another user could have written a file or a folder, and warn of it."""
    others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if status.st_uid in {0, os.geteuid()} and not others:
        return False
    why = f"it can be written by other users (mode {stat.S_IMODE(status.st_mode):o})"
    if not others:
        why = f"it belongs to user {status.st_uid}, and this process is of user {os.geteuid()}"
    warnings.warn(
        f"the kept code in {str(path)!r} is not used: {why}.\n"
        "What somebody else put there would run here. FFCV's operations are compiled at each start instead. Take the "
        f"write permission away (chmod go-w {shlex.quote(str(path))}), or give a folder of your own: "
        "wrap(source(loader, compile_cache=...)).",
        PromiseWarning,
        stacklevel=stacklevel,
    )
    return True


def _write_own(file: Path, content: bytes) -> None:
    """Write a new file that no other user may write, whatever the process's mask says."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(file, flags, 0o600), "wb") as opened:  # noqa: PTH123  # of a descriptor
        opened.write(content)


@lru_cache(maxsize=1)
def _environment() -> str:
    """Return everything that decides how a function is compiled, besides the function and the processor."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
    settings = [f"{name} {getattr(config, name, None)}" for name in _SETTINGS]
    ours = [hash_of_file(str(file)).hex() for file in sorted(Path(__file__).parent.glob("*.py"))]
    python = f"{platform.python_implementation()} {sys.version}"
    return "\n".join([python, numba.__file__, *versions, *settings, *ours])


def _checksum(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_CHECKSUM).digest()
