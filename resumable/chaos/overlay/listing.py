"""What is in a directory: the case's files and the machine's, without those that are gone."""

from __future__ import annotations

import os
import posix
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import TYPE_CHECKING, Any

from resumable.chaos.overlay.view import exists, is_dir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from resumable.chaos.overlay.view import View

__all__ = ["Entries", "is_mixed", "names_in"]


def is_mixed(view: View, real: str) -> bool:
    """Tell whether a directory's names are others than the machine's."""
    return view.is_redirected(real) and (exists(view.copy_of(real)) or view.gone.has_below(real) or view.gone.covers(real))


def names_in(view: View, real: str) -> list[str]:
    """Return the names in a directory.

    Raises:
        OSError: it is not there, or is no directory.
    """
    if not is_mixed(view, real):
        return posix.listdir(real)
    copy = view.copy_of(real)
    own = posix.listdir(copy) if exists(copy) or view.gone.covers(real) else []
    if view.gone.covers(real) or not is_dir(real):
        return own
    known = set(own)
    marked = view.gone.has_below(real)
    shown = [name for name in posix.listdir(real) if not (marked and view.gone.covers(f"{real}/{name}"))]
    return own + [name for name in shown if name not in known]


class Entries:
    """What `os.scandir` gives for a directory of two parts.

    Args:
        view: of the files.
        real: the directory.
        given: its path as it was given, for the paths of the entries.
    """

    def __init__(self, view: View, real: str, given: str | bytes) -> None:
        self._entries = iter([_Entry(view, f"{real}/{name}", given, name) for name in names_in(view, real)])

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give no entry any longer."""
        self._entries = iter(())


class _Entry:
    """Looks like `os.DirEntry`, which Python code cannot make."""

    def __init__(self, view: View, real: str, given: str | bytes, name: str) -> None:
        self.name: str | bytes = os.fsencode(name) if isinstance(given, bytes) else name
        self.path = os.path.join(given, self.name)  # type: ignore[arg-type]  # noqa: PTH118  # both of one type
        self._shown, self._followed = view.shown(real), view.shown(view.find(real).real)

    def __fspath__(self) -> str | bytes:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return its status."""
        return posix.stat(self._followed) if follow_symlinks else posix.lstat(self._shown)

    def inode(self) -> int:
        """Return its number in the file system."""
        return posix.lstat(self._shown).st_ino

    def is_symlink(self) -> bool:
        """Tell whether it is a link."""
        return self._is(S_ISLNK, follow_symlinks=False)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Tell whether it is a directory."""
        return self._is(S_ISDIR, follow_symlinks=follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Tell whether it is a file."""
        return self._is(S_ISREG, follow_symlinks=follow_symlinks)

    def is_junction(self) -> bool:
        """Tell whether it is one of Windows's junctions, which are not here."""
        return False

    def _is(self, kind: Any, *, follow_symlinks: bool) -> bool:
        try:
            return bool(kind(self.stat(follow_symlinks=follow_symlinks).st_mode))
        except OSError:
            return False
