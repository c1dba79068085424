"""The key-value store of a process group: ranks post small values for each other, and never wait."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable._processes import look_at

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["Posts", "find_store", "is_initialized", "started"]


# ------------------------------------------------------------------ clock
#
# The start time of this process distinguishes its run's posts from older ones, in a store that outlives processes.
#
# A rank posts only after the process group was made, which requires all ranks: so after each of them was started. The
# clocks of the hosts must agree to about the second that starting a process takes.

_imported = time.time()
_starts: dict[int, float] = {}  # by process, because a fork copies this module


def started() -> float:
    """Return when this process was started, as wall-clock time in seconds."""
    pid = os.getpid()
    if pid not in _starts:
        _starts.clear()
        _starts[pid] = _of_system()
    return _starts[pid]


def _of_system() -> float:
    now = time.time()
    stat = look_at("self")
    if stat is None:
        return _imported
    try:
        up = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
        age = up - stat.started / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return _imported
    return now - age if age >= 0 else _imported


# ------------------------------------------------------------------ store

_NONE = "none"
_TRIES = 4  # to replace a post that earlier processes have left


def is_initialized() -> bool:
    """Return whether there is a process group."""
    distributed: Any = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and bool(distributed.is_initialized())


def find_store() -> Any:
    """Return the store with which the default process group was made; None if there is none."""
    if not is_initialized():
        return None
    from resumable._torch_private import default_store  # noqa: PLC0415  # PyTorch is loaded: there is a group

    return default_store()


class Posts:
    """Values that ranks post under keys, as JSON with the time. Posts from before this process started are ignored.

    If the store fails because its host is gone, it has no posts from then on: reading them must not end a run.

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
        """Post a value unless a different rank has, and return the current post. Takes one request and one answer.

        Args:
            key: of the post.
            value: to post.
            keep: decides whether to keep a different rank's value; by default always.
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
        """Post a value, replacing any other."""
        self._ask(lambda key: self._store.set(key, _text(value)), key)

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the posted value; None if there is none."""
        return _parsed(self._exchange(key, _NONE, _NONE))  # `get` of the store would wait for a post

    def remove(self, key: str) -> None:
        """Remove a post."""
        self._ask(self._store.delete_key, key)

    def count(self, key: str, more: int) -> int:
        """Add to a number, and return it; 0 if the store is gone."""
        return int(self._ask(lambda key: self._store.add(key, more), key) or 0)

    def _exchange(self, key: str, before: str, now: str) -> str:
        """Replace one text with another, and return the current one; `before` if there is none."""
        found = self._ask(lambda key: self._store.compare_set(key, before, now), key)
        return "" if found is None else found.decode()

    def _ask(self, request: Callable[[str], Any], key: str) -> Any:
        if self._gone:
            return None
        try:
            return request(self._prefix + key)
        except RuntimeError:  # every store error is one
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
