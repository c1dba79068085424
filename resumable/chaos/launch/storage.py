"""What can go wrong with checkpoints between two starts of a command, done to the files of its stores and Trainers.

Only files whose path leads into the directory of the case are touched, whichever links are on the way. A file gets its
new content by a new file in its place, so that another name of it, which may be outside, keeps the old content.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from resumable.chaos.launch.stores import committed, is_inside, local_roots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resumable.chaos.recorder.attempts import Attempt

__all__ = ["DAMAGES", "MARRING"]


class _Checkpoint(NamedTuple):
    """A checkpoint on the disk.

    Args:
        order: what is greater for a newer one.
        data: its data file.
        whole: what is to be removed to remove it: the directory of a step, or the file.
    """

    order: tuple[int, int]
    data: Path
    whole: Path


def _newest(attempts: Sequence[Attempt], case: Path) -> _Checkpoint | None:
    """Find the newest committed checkpoint of a store; without any, that of the Lightning Trainer."""
    stored = [
        _Checkpoint((step, data.stat().st_mtime_ns), data, data.parent)
        for root in local_roots(attempts, case)
        for step, data in committed(root)
        if is_inside(data, case)
    ]
    files = [
        _Checkpoint((0, path.stat().st_mtime_ns), path, path)
        for path in case.rglob("*.ckpt")
        if path.is_file() and is_inside(path, case)
    ]
    return max(stored or files, default=None)


def _rewrite(path: Path, content: bytes) -> None:
    draft = path.with_name(f"{path.name}.damaged")
    draft.write_bytes(content)
    draft.replace(path.resolve())


def _truncate(attempts: Sequence[Attempt], case: Path) -> bool:
    newest = _newest(attempts, case)
    if newest is None:
        return False
    content = newest.data.read_bytes()
    _rewrite(newest.data, content[: len(content) // 2])
    return True


def _flip(attempts: Sequence[Attempt], case: Path) -> bool:
    newest = _newest(attempts, case)
    if newest is None:
        return False
    content = bytearray(newest.data.read_bytes())
    content[len(content) // 2] ^= 1
    _rewrite(newest.data, bytes(content))
    return True


def _remove(attempts: Sequence[Attempt], case: Path) -> bool:
    newest = _newest(attempts, case)
    if newest is None:
        return False
    (shutil.rmtree if newest.whole.is_dir() else Path.unlink)(newest.whole)
    return True


def _lose(attempts: Sequence[Attempt], case: Path) -> bool:
    """Lose the content of files that were written and not made durable, as a power cut may."""
    for log in attempts[-1].ranks.values():
        durable = {path for point, path in log.files if point == "store.synced"}
        written = {path for point, path in log.files if point == "store.written"} - durable
        for path in map(Path, written):
            if path.exists() and is_inside(path, case):
                _rewrite(path, b"")
    return True


DAMAGES: dict[str, Callable[[Sequence[Attempt], Path], bool]] = {
    "truncate": _truncate,
    "flip": _flip,
    "stale": _remove,
    "lost-fsync": _lose,
}
MARRING = {"truncate", "flip"}  # after these, one checkpoint is there that cannot be loaded
