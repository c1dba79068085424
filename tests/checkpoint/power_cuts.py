"""Power cuts: what no fsync covered may be on the disk, or not, in any combination."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pytest

__all__ = ["Crash", "PowerCuts"]


class Disk:
    """Which names and bytes are durable, seen from the fsync calls alone.

    An fsync of a directory makes its names durable, one of a file its bytes. At a power cut each name that changed
    since then is old or new, independently of the others, and a file whose bytes were never made durable is empty.
    File systems with a journal are kinder than that.
    """

    def __init__(self, top: Path) -> None:
        self.top = top
        self.names: dict[int, dict[str, int]] = {}
        self.bytes: dict[int, bytes] = {}
        self.held: list[int] = []  # open files keep their inode numbers from being used again
        self.seen: set[Any] = set()

    def fsync(self, descriptor: int) -> None:
        number = os.fstat(descriptor).st_ino
        self.held.append(os.dup(descriptor))
        path = Path(f"/proc/self/fd/{descriptor}")
        if path.is_dir():
            self.names[number] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self.bytes[number] = path.read_bytes()

    def views(self) -> Iterator[Any]:
        """Give each tree that a power cut now could leave, as nested dicts, unless it was given before."""
        live = {path.stat().st_ino: path for path in [self.top, *self.top.rglob("*")] if path.is_dir()}
        for view in self._views(self.top.stat().st_ino, live):
            if (key := repr(view)) not in self.seen:
                self.seen.add(key)
                yield view

    def _views(self, number: int, live: dict[int, Path]) -> Iterator[Any]:
        if number not in live and number not in self.names:
            yield self.bytes.get(number, b"")
            return
        durable = self.names.get(number, {})
        current = {entry.name: entry.inode() for entry in os.scandir(live[number])} if number in live else {}
        names = sorted({*durable, *current})
        choices = [{durable.get(name), current.get(name)} for name in names]
        for choice in itertools.product(*choices):
            parts = [[None] if inode is None else list(self._views(inode, live)) for inode in choice]
            for part in itertools.product(*parts):
                yield {name: value for name, value in zip(names, part, strict=True) if value is not None}

    def close(self) -> None:
        for descriptor in self.held:
            os.close(descriptor)


def write_tree(view: Any, path: Path) -> None:
    if isinstance(view, bytes):
        path.write_bytes(view)
        return
    path.mkdir()
    for name, part in view.items():
        write_tree(part, path / name)


class Crash(BaseException):
    """Ends a save in the middle; nothing catches it, and no file operation works after it."""


class PowerCuts:
    """Looks at every possible power cut before each file operation, and crashes the process at a chosen one.

    Threads take turns: what one does to the disk is done when another one goes on.

    Args:
        tmp_path: for the disk.
        monkeypatch: puts watched operations in place of those of `os`.
        found: tells what a new process finds under a root.
    """

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Callable[[Path], Any]) -> None:
        self.top, self.copy = tmp_path / "disk", tmp_path / "copy"
        self.top.mkdir()
        self.root = self.top / "runs" / "digits"
        self.disk, self.found = Disk(self.top), found
        self.turn, self.looking = threading.RLock(), False
        self.allowed: list[Any] = [None]  # what a new process may find
        self.countdown, self.dead, self.cuts = 0, False, 0
        for name in ("fsync", "replace", "mkdir", "unlink", "remove", "rmdir"):
            monkeypatch.setattr(os, name, self.watched(name, getattr(os, name)))

    def watched(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def watch(target: Any, *args: Any, **kwargs: Any) -> Any:
            with self.turn:
                if not self.looking:
                    self.look()
                    self.countdown -= 1
                    self.dead = self.dead or self.countdown == 0
                    if self.dead:
                        raise Crash
                    if name == "fsync":
                        self.disk.fsync(target)
                return operation(target, *args, **kwargs)

        return watch

    def look(self) -> None:
        """Check what a new process would find after each power cut that is possible now."""
        self.looking = True
        for view in self.disk.views():
            write_tree(view, self.copy)
            found = self.found(self.copy / "runs" / "digits")
            assert found in self.allowed, (found, self.allowed, list(self.disk.names))
            shutil.rmtree(self.copy)
            self.cuts += 1
        self.looking = False

    def save(self, save: Callable[[], None], before: Iterable[Any], after: Any) -> bool:
        """Save with an eye on every power cut; tell whether the process lived.

        Args:
            save: what is done.
            before: what may be found meanwhile, besides what is found then.
            after: what has to be found then.
        """
        self.allowed = [*before, after]
        try:
            save()
        except Crash:
            self.dead = False
            return False
        self.allowed = [after]
        self.disk.seen.clear()
        self.look()
        return True
