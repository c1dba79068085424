"""The content of a directory: the case's files and the machine's, without hidden ones."""

from __future__ import annotations

import os
import posix
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import TYPE_CHECKING, Any

from resumable.chaos.recorder.overlay.errors import check_there
from resumable.chaos.recorder.overlay.view import exists, is_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from resumable.chaos.recorder.overlay.view import View

__all__ = ["entries_in", "entries_of_system", "is_mixed", "names_in"]


def is_mixed(view: View, real: str) -> bool:
    """Return whether the names in a directory differ from the machine's."""
    return view.is_redirected(real) and (
        exists(view.copy_of(real)) or view.gone.has_below(real) or view.gone.covers(real)
    )


def names_in(view: View, real: str) -> list[str]:
    """Return the names in a directory.

    Raises:
        OSError: it does not exist, or is not a directory.
    """
    if not is_mixed(view, real):
        return posix.listdir(real)
    check_there(view, real)
    copy = view.copy_of(real)
    own = posix.listdir(copy) if exists(copy) or view.gone.covers(real) else []
    if view.gone.covers(real) or not is_dir(real):
        return own
    known = set(own)
    marked = view.gone.has_below(real)
    shown = [name for name in posix.listdir(real) if not (marked and view.gone.covers(f"{real}/{name}"))]
    return own + [name for name in shown if name not in known]


def entries_in(view: View, real: str, given: Any) -> Entries:
    """Return the result of `os.scandir`.

    Args:
        view: of the files.
        real: the directory.
        given: the path that the caller passed, for the paths of the entries.
    """
    path = "" if isinstance(given, int) else os.fspath("." if given is None else given)
    return Entries((_Entry(view, f"{real}/{name}", path, name) for name in names_in(view, real)), lambda: None)


def entries_of_system(view: View, real: str, given: Any) -> Entries:
    """Return the system's entries, except links: their targets may differ in the case."""
    path = "" if isinstance(given, int) else os.fspath("." if given is None else given)
    found = posix.scandir(given)

    def see(entry: os.DirEntry[Any]) -> Any:
        name = os.fsdecode(entry.name)
        return _Entry(view, f"{real}/{name}", path, name) if entry.is_symlink() else entry

    return Entries(map(see, found), found.close)


class Entries:
    """An iterator like that of `os.scandir`.

    Args:
        entries: its entries.
        close: called when it is no longer needed.
    """

    def __init__(self, entries: Iterator[Any], close: Callable[[], None]) -> None:
        self._entries, self._close = entries, close

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the iteration."""
        self._entries = iter(())
        self._close()


class _Entry:
    """A substitute for `os.DirEntry`, which Python code cannot create."""

    def __init__(self, view: View, real: str, given: str | bytes, name: str) -> None:
        self.name: str | bytes = os.fsencode(name) if isinstance(given, bytes) else name
        self.path = os.path.join(given, self.name)  # type: ignore[arg-type]  # both of one type
        self._view, self._real = view, real

    def __fspath__(self) -> str | bytes:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return its status."""
        try:
            return posix.stat(self._view.shown(self._view.find(self._real).real)) if follow_symlinks else self._status()
        except OSError as error:
            error.filename = self.path
            raise

    def _status(self) -> os.stat_result:
        return posix.lstat(self._view.shown(self._real))

    def inode(self) -> int:
        """Return its inode number."""
        return self._status().st_ino

    def is_symlink(self) -> bool:
        """Return whether it is a link."""
        return self._is(S_ISLNK, follow_symlinks=False)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a directory."""
        return self._is(S_ISDIR, follow_symlinks=follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a file."""
        return self._is(S_ISREG, follow_symlinks=follow_symlinks)

    def is_junction(self) -> bool:
        """Return whether it is a Windows junction; there are none here."""
        return False

    def _is(self, kind: Any, *, follow_symlinks: bool) -> bool:
        try:
            return bool(kind(self.stat(follow_symlinks=follow_symlinks).st_mode))
        except FileNotFoundError:  # it is gone, or a broken link; other errors are raised, as by Python itself
            return False
