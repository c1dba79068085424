"""Resolves paths, and finds the file that is shown there."""

from __future__ import annotations

import errno
import os
import posix
import re
import stat
from typing import Any, NamedTuple

from resumable.chaos.recorder.overlay.exempt import Exempt
from resumable.chaos.recorder.overlay.marks import Marks

__all__ = ["Resolved", "View", "exists", "is_dir"]

_LINKS = 40  # followed in one path, as in Linux
_DESCRIPTOR = re.compile(r"/proc/(?:self|thread-self|\d+)/fd/\d+|/dev/fd/\d+|/dev/std(?:in|out|err)")


class Trail:
    """Reads the links on the way down a path; if a directory has no copy, nothing in it has one.

    Args:
        files: folder of the copies.
        gone: marks of hidden paths.
        real: the path at which the way down starts.

    Attributes:
        copied: whether the last link that was read belongs to the case.
    """

    def __init__(self, files: str, gone: Marks, real: str) -> None:
        self._files, self._gone = files, gone
        self._may_be_copied = self._may_be_gone = True
        self._is_gone, self.copied = gone.covers(real), False

    def read_link(self, real: str) -> str | None:
        """Return the target of a path; None if it is not a link."""
        if self._may_be_gone and not self._is_gone:
            self._may_be_gone = self._gone.has_below(real)
            self._is_gone = self._may_be_gone and self._gone.has(real)
        self.copied = self._may_be_copied
        if self._may_be_copied:
            try:
                return posix.readlink(self._files + real)
            except OSError as error:
                if error.errno == errno.EINVAL:  # it exists, but is not a link
                    return None
                self._may_be_copied = self.copied = False
        return None if self._is_gone else _read_link(real)


class Resolved(NamedTuple):
    """A resolved path.

    Args:
        real: the path with links resolved.
        moved: whether the system would resolve the given path differently, because it does not know the case's files.
    """

    real: str
    moved: bool


class View:
    """The machine's files, overlaid with those of a case.

    Args:
        case: directory of the case.
    """

    def __init__(self, case: str) -> None:
        self.case = os.path.realpath(case)
        outside = f"{self.case}/outside"
        self.files, self.drafts = f"{outside}/files", f"{outside}/drafts"
        self.gone = Marks(f"{outside}/gone")
        self.exempt = Exempt(outside)

    def find(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> Resolved:
        """Resolve the links of a path as the process sees them.

        Args:
            path: of a file, which may not exist.
            dir_fd: descriptor of the directory to which a relative path is relative.
            follow: whether to resolve the last part of the path as well.
        """
        text = os.fsdecode(path)
        if _DESCRIPTOR.fullmatch(text):
            return self._find_open(text, follow=follow)
        moved = False
        if not text.startswith("/"):
            base = posix.getcwd() if dir_fd is None else _path_of(dir_fd)
            moved = self._is_shadow(base)
            text = f"{base}/{text}"
        place = self._walk(self._real_name(text), follow=follow)
        moved |= place.moved or self._is_shadow(text)
        if self._is_shadow(place.real):  # a link led into the case's folder of copies
            return Resolved(self._walk(self._real_name(place.real), follow=follow).real, moved=True)
        return Resolved(place.real, moved)

    def _find_open(self, text: str, *, follow: bool) -> Resolved:
        """Resolve the name of a descriptor, which opens its file again; a pipe or a socket has no other name."""
        target = _read_link(text) or ""
        if not follow or not target.startswith("/") or not exists(target) or target.startswith(("/dev/", "/proc/")):
            return Resolved(text, moved=False)
        place = self.find(target)
        return Resolved(place.real, moved=True)

    def is_redirected(self, real: str) -> bool:
        """Return whether writes to a path are redirected."""
        return not _is_below(real, self.case) and not self.exempt.covers(real)

    def copy_of(self, real: str) -> str:
        """Return the path of the case's copy of a redirected path."""
        return self.files + real

    def written(self, real: str) -> str:
        """Return the path at which writes to a path end up."""
        return self.copy_of(real) if self.is_redirected(real) else real

    def shown(self, real: str) -> str:
        """Return the path of the file shown at a path; if nothing is shown, a path that does not exist."""
        if not self.is_redirected(real):
            return real
        copy = self.copy_of(real)
        return copy if exists(copy) or self.gone.covers(real) else real

    def is_the_machines(self, real: str) -> bool:
        """Return whether the file shown at a path is outside the case and was not written by it."""
        return self.is_redirected(real) and exists(real) and self.shown(real) == real

    def _walk(self, path: str, *, follow: bool) -> Resolved:
        real, moved, links = "", False, 0
        rest = path.split("/")[::-1]
        if _is_below(path, self.case):  # the path of the case has no links
            real, rest = self.case, path[len(self.case) :].split("/")[::-1]
        trail = Trail(self.files, self.gone, real)
        while rest:
            part = rest.pop()
            if part in {"", "."}:
                continue
            if part == "..":
                real = real.rpartition("/")[0]
                trail = Trail(self.files, self.gone, real)
                continue
            real = f"{real}/{part}"
            target = trail.read_link(real) if rest or follow else None
            if target is None:
                continue
            links += 1
            if links > _LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            moved |= trail.copied
            real = "" if target.startswith("/") else real.rpartition("/")[0]
            trail = Trail(self.files, self.gone, real)
            rest += target.split("/")[::-1]
        return Resolved(real or "/", moved)

    def _is_shadow(self, path: str) -> bool:
        return _is_below(path, self.files)

    def _real_name(self, path: str) -> str:
        return path[len(self.files) :] or "/" if self._is_shadow(path) else path


def exists(path: str) -> bool:
    """Return whether something exists at a path, including a broken link."""
    try:
        posix.lstat(path)
    except OSError:
        return False
    return True


def is_dir(path: str) -> bool:
    """Return whether a path leads to a directory."""
    try:
        return stat.S_ISDIR(posix.stat(path).st_mode)
    except OSError:
        return False


def _is_below(path: str, directory: str) -> bool:
    return path.startswith(directory) and (len(path) == len(directory) or path[len(directory)] == "/")


def _read_link(path: str) -> str | None:
    try:
        return posix.readlink(path)
    except OSError:
        return None


def _path_of(descriptor: int) -> str:
    """Return the path of an open directory."""
    if path := _read_link(f"/proc/self/fd/{descriptor}"):
        return path
    import fcntl  # noqa: PLC0415  # for systems without /proc

    return os.fsdecode(fcntl.fcntl(descriptor, getattr(fcntl, "F_GETPATH", 50), bytes(1024)).rstrip(b"\0"))
