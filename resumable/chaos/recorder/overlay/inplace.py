"""Files of a case that are written directly under the names that a later launch reads: a kill leaves incomplete files.

Recorded once per process and file: that it was written in place, and whether it existed; and that it was read before
this process wrote it, if an earlier launch wrote it in place.
"""

from __future__ import annotations

import json
import os
import posix
from typing import TYPE_CHECKING

from resumable.chaos.recorder.overlay.state import STATE

if TYPE_CHECKING:
    from resumable.chaos.recorder.overlay.view import View

__all__ = ["tell_read", "tell_removed", "tell_written"]

_MOST = 1000  # files that a process records
_FOLDERS = ("work/", "outside/files/")


def tell_written(view: View, real: str, flags: int) -> None:
    """Record that a file is about to be opened for writing, if that destroys its content or it does not exist."""
    if (name := _name(view, real)) is None:
        return
    size, known = _size(view.shown(real)), STATE.in_place.get(name)
    over = size > 0 or name in STATE.removed
    if (size < 0 or flags & posix.O_TRUNC) and (known is None or over > known) and len(STATE.in_place) < _MOST:
        STATE.tell_file("in place", name, over=over)
        STATE.in_place[name] = over


def tell_removed(view: View, real: str) -> None:
    """Remember that a file is removed: the next write to its path replaces it."""
    if (name := _name(view, real)) is not None and name in STATE.in_place and len(STATE.removed) < _MOST:
        STATE.removed.add(name)


def tell_read(view: View, real: str) -> None:
    """Record that a file is read."""
    name = _name(view, real)
    if name is None or name in STATE.in_place or name in STATE.read or _size(view.shown(real)) < 0:
        return
    if name in _of_earlier_starts():
        STATE.read.add(name)
        STATE.tell_file("read in place", name)


def _name(view: View, real: str) -> str | None:
    path = view.written(real)
    name = path[len(view.case) + 1 :] if path.startswith(f"{view.case}/") else ""
    return name.removeprefix("work/") if name.startswith(_FOLDERS) else None


def _size(path: str) -> int:
    """Return the size of a file, or -1 if it does not exist."""
    try:
        return posix.stat(path).st_size
    except OSError:
        return -1


def _of_earlier_starts() -> set[str]:
    if STATE.earlier is None:
        folder, own = os.path.split(STATE.ledger)
        starts = [name for name in posix.listdir(folder) if name.startswith("attempt-") and name != own]
        STATE.earlier = {name for start in starts for name in _read_ledgers(f"{folder}/{start}")}
    return STATE.earlier


def _read_ledgers(start: str) -> set[str]:
    found: set[str] = set()
    for ledger in posix.listdir(start):
        if ledger.startswith("outside-"):
            with STATE.trusted(), open(f"{start}/{ledger}", "rb") as file:
                events = [json.loads(line) for line in file if line.endswith(b"\n")]
            found.update(event["path"] for event in events if event["kind"] == "in place")
    return found
