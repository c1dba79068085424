"""What can go wrong with checkpoints between two starts of a command, done to the files of a store."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable.chaos.logs import Attempt

__all__ = ["DAMAGES"]


def _newest(attempts: list[Attempt]) -> Path | None:
    """Find the directory of the newest checkpoint that is there, of the stores that the attempts wrote to."""
    roots = {root for attempt in attempts for log in attempt.ranks.values() for root, _ in log.saved if root}
    found = [path.parent for root in roots for path in Path(root).glob("*/*.pt")]
    return max(found, key=lambda path: (path.name, path), default=None)


def _data_file(attempts: list[Attempt]) -> Path | None:
    newest = _newest(attempts)
    return None if newest is None else max(newest.glob("*.pt"), key=lambda path: path.stat().st_mtime, default=None)


def _truncate(attempts: list[Attempt]) -> bool:
    data = _data_file(attempts)
    if data is None:
        return False
    with data.open("r+b") as file:
        file.truncate(data.stat().st_size // 2)
    return True


def _flip(attempts: list[Attempt]) -> bool:
    data = _data_file(attempts)
    if data is None:
        return False
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    return True


def _remove(attempts: list[Attempt]) -> bool:
    newest = _newest(attempts)
    if newest is None:
        return False
    shutil.rmtree(newest)
    return True


def _lose(attempts: list[Attempt]) -> bool:
    """Lose the content of files that were written and not made durable, as a power cut may."""
    for log in attempts[-1].ranks.values():
        durable = {path for point, path in log.files if point == "store.synced"}
        written = {path for point, path in log.files if point == "store.written"} - durable
        for path in map(Path, written):
            if path.exists():
                path.write_bytes(b"")
    return True


DAMAGES: dict[str, Callable[[list[Attempt]], bool]] = {
    "truncate": _truncate,
    "flip": _flip,
    "stale": _remove,
    "lost-fsync": _lose,
}
