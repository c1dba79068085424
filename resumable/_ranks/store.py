"""The key-value store of a process group: small posts of one rank that others find, without waiting for each other."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["Posts", "find_store", "is_initialized", "started"]


# ------------------------------------------------------------------ clock
#
# Since when this process lives, so that what processes before it left in a store that outlives them is told apart.
#
# What a rank of this run posts, it posts after the process group was made, for which all ranks had to be there: so
# after each of them was started. Clocks of hosts have to agree to about the second that a start takes.

_imported = time.time()
_starts: dict[int, float] = {}  # by process, as a fork copies this module


def started() -> float:
    """Return when this process was started, in seconds of the clock on the wall."""
    pid = os.getpid()
    if pid not in _starts:
        _starts.clear()
        _starts[pid] = _of_system()
    return _starts[pid]


def _of_system() -> float:
    now = time.time()
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        up = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
        age = up - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return _imported
    return now - age if age >= 0 else _imported


# ------------------------------------------------------------------ store

_NONE = "none"
_TRIES = 4  # to take the place of a post that processes before this one have left


def is_initialized() -> bool:
    """Return whether there is a process group."""
    distributed: Any = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and bool(distributed.is_initialized())


def find_store() -> Any:
    """Return the store by which the default process group was made; None where there is none."""
    if not is_initialized():
        return None
    distributed: Any = sys.modules["torch.distributed"]
    find = getattr(distributed.distributed_c10d, "_get_default_store", None)
    return None if find is None else find()


class Posts:
    """What ranks post under keys. Each is JSON with the time, and one from before this process was started is none.

    A store that fails, as its host is gone, has no posts from then on: to look at them must not end a run.

    Args:
        store: of the process group.
        prefix: before each key.
    """

    def __init__(self, store: Any, prefix: str) -> None:
        self._store, self._prefix, self._gone = store, prefix, False

    @property
    def is_gone(self) -> bool:
        """Whether the store has failed."""
        return self._gone

    def agree(
        self, key: str, value: dict[str, Any], keep: Callable[[dict[str, Any]], bool] | None = None
    ) -> dict[str, Any]:
        """Post a value unless another rank has, and return what is posted then. One request, and one answer.

        Args:
            key: for it.
            value: to post.
            keep: tells whether to let a value of another rank stand; by default any.
        """
        own, before = _text(value), ""
        for _ in range(_TRIES):
            text = self._exchange(key, before, own)
            found = _parsed(text)
            if found is not None and (text == own or keep is None or keep(found)):
                return found
            before = text
        return value

    def set(self, key: str, value: dict[str, Any]) -> None:
        """Post a value, in place of any other."""
        self._ask(lambda key: self._store.set(key, _text(value)), key)

    def get(self, key: str) -> dict[str, Any] | None:
        """Return what is posted; None where nothing is."""
        return _parsed(self._exchange(key, _NONE, _NONE))  # `get` of the store would wait for a post

    def remove(self, key: str) -> None:
        """Take a post back."""
        self._ask(self._store.delete_key, key)

    def count(self, key: str, more: int) -> int:
        """Add to a number, and return it; 0 where the store is gone."""
        return int(self._ask(lambda key: self._store.add(key, more), key) or 0)

    def _exchange(self, key: str, before: str, now: str) -> str:
        """Post a text where another one was, and return what is there then; `before` where nothing is."""
        found = self._ask(lambda key: self._store.compare_set(key, before, now), key)
        return "" if found is None else found.decode()

    def _ask(self, request: Callable[[str], Any], key: str) -> Any:
        if self._gone:
            return None
        try:
            return request(self._prefix + key)
        except RuntimeError:  # every error of a store is one
            self._gone = True
            return None


def _text(value: dict[str, Any]) -> str:
    return json.dumps({**value, "time": time.time()}, default=repr)


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) and value.get("time", 0) >= started() else None
