"""Files that are read at places: local ones, and those of every file system that fsspec knows; opened per process."""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import contextmanager, suppress
from functools import partial
from glob import glob, has_magic
from operator import methodcaller
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from resumable._distribution import pip_install
from resumable._durable import write_whole
from resumable._storage import open_url
from resumable.errors import ConfigurationError, DataError, MissingDependencyError, ResumableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


__all__ = ["Descriptor", "Files", "Part", "Stamp", "base_of", "find_files", "is_remote", "storage"]

_NO_FILE = (404, 410)  # of HTTP
_OPEN = 64  # files that a process keeps open
_TAGS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "mtime", "updated", "created")


class Stamp(NamedTuple):
    """What changes where a file is written again: its size in bytes, and what else the file system says of it.

    `changed` is the time of the change in nanoseconds, of a remote file its tag or time; empty where there is none.
    """

    size: int
    changed: str


class Part(NamedTuple):
    """The bytes `start..stop-1` of a file."""

    name: str
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.name}, bytes {self.start}..{self.stop - 1}"


def is_remote(name: str) -> bool:
    """Return whether a name is a URL that fsspec is to open; a `file://` is local."""
    return "://" in name


class Descriptor:
    """A file that is open for reading, until nothing uses it."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self.number)


class Files:
    """Reads files, by paths or URLs. What is open belongs to one process; a forked or pickled copy opens it again.

    Args:
        options: for the file system of the URLs.
    """

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self._options = dict(options or {})
        self._forget()

    def _forget(self) -> None:
        self._process, self._lock = os.getpid(), Lock()
        self._open: OrderedDict[str, Descriptor] = OrderedDict()
        self._seen: set[str] = set()
        self._systems: dict[str, Any] = {}

    def _own(self) -> None:
        if self._process != os.getpid():
            self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    # ------------------------------------------------------------------ file systems

    def system(self, name: str) -> tuple[Any, str]:
        """Return the file system of a URL, and the path on it.

        Raises:
            MissingDependencyError: its package is not installed.
            ConfigurationError: fsspec knows no such file system.
        """
        self._own()
        protocol = name.partition("://")[0]
        if "::" in name or protocol not in self._systems:  # with "::", of file systems in one another
            self._systems[protocol], path = open_url(name, self._options)
            return self._systems[protocol], path
        system = self._systems[protocol]
        return system, system._strip_protocol(name)  # noqa: SLF001  # how fsspec's own functions do it

    def find(self, pattern: str) -> list[str]:
        """Return the files that a pattern with `*`, `?` or `[...]` stands for, in the order of their names.

        A name without these, and a local one that is there as it is, stands for itself.
        """
        if not has_magic(pattern) or (not is_remote(pattern) and Path(pattern).exists()):
            return [pattern]
        if not is_remote(pattern):
            return sorted(glob(pattern, recursive=True))  # noqa: PTH207  # of any text, as it was given
        system, path = self.system(pattern)
        system.invalidate_cache()  # another process may have written more of them
        try:
            with storage():
                return sorted(system.unstrip_protocol(found) for found in system.glob(path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigurationError(
                f"{pattern} cannot be looked for: {error}.\nWhich files there are could not be known. Look after the "
                "storage and its rights."
            ) from error

    def stamp(self, name: str) -> Stamp:
        """Return the stamp of a file as it is now.

        Raises:
            FileNotFoundError: there is none.
            OSError: the storage fails.
        """
        if not is_remote(name):
            found = os.stat(name)  # noqa: PTH116  # of any text
            return Stamp(found.st_size, str(found.st_mtime_ns))
        system, path = self.system(name)
        system.invalidate_cache(path)
        with storage():
            info = system.info(path)
        if info.get("type") == "directory":
            raise FileNotFoundError(name)
        tags = [str(info[tag]) for tag in _TAGS if info.get(tag)]
        return Stamp(int(info["size"]), tags[0] if tags else "")

    # ------------------------------------------------------------------ reading

    def open(self, name: str) -> BinaryIO:
        """Open a file to be read from its beginning."""
        if not is_remote(name):
            return Path(name).open("rb")
        system, path = self.system(name)
        opened: BinaryIO = system.open(path, "rb")
        return opened

    def read(self, parts: Sequence[Part], stamps: Mapping[str, Stamp]) -> list[bytes]:
        """Read parts of files; remote ones at the same time.

        Args:
            parts: what to read.
            stamps: of the files as they are known; looked at when a process reads the first time.

        Raises:
            DataError: a file is gone, or another one than it was.
        """
        self._own()
        if len(parts) == 1 and not is_remote(parts[0].name):  # what is mostly asked for, in half of the time
            return [_whole(parts[0], self._read_local(parts[0], stamps[parts[0].name]))]
        local = [part for part in parts if not is_remote(part.name)]
        remote = [part for part in parts if is_remote(part.name)]
        read = dict(zip(remote, self._read_remote(remote, stamps), strict=True)) if remote else {}
        read |= {part: self._read_local(part, stamps[part.name]) for part in local}
        return [_whole(part, read[part]) for part in parts]

    def _read_local(self, part: Part, stamp: Stamp) -> bytes:
        try:
            with self._lock:
                file = self._open.get(part.name) or self._opened(part, stamp)
                self._open.move_to_end(part.name)
            return _pread(file.number, part)
        except FileNotFoundError as error:
            raise _gone(part) from error
        except OSError as error:
            raise _unread(part, error) from error

    def _opened(self, part: Part, stamp: Stamp) -> Descriptor:
        file = Descriptor(part.name)
        found = os.fstat(file.number)
        _compare(part, stamp, Stamp(found.st_size, str(found.st_mtime_ns)))
        self._open[part.name] = file
        if len(self._open) > _OPEN:
            self._open.popitem(last=False)  # closed when no thread reads it
        return file

    def _read_remote(self, parts: Sequence[Part], stamps: Mapping[str, Stamp]) -> list[bytes]:
        for part in parts:
            if part.name not in self._seen:
                try:
                    _compare(part, stamps[part.name], self.stamp(part.name))
                except FileNotFoundError as error:
                    raise _gone(part) from error
                except OSError as error:
                    raise _unread(part, error) from error
                self._seen.add(part.name)
        systems = [self.system(part.name) for part in parts]
        read: list[Any] = [None] * len(parts)
        for system in {id(system): system for system, _ in systems}.values():
            some = [number for number, (one, _) in enumerate(systems) if one is system]
            paths = [systems[number][1] for number in some]
            starts, stops = [parts[number].start for number in some], [parts[number].stop for number in some]
            found = system.cat_ranges(paths, starts, stops, on_error="return")
            for number, data in zip(some, found, strict=True):
                read[number] = data
        for part, data in zip(parts, read, strict=True):
            if isinstance(data, FileNotFoundError):
                raise _gone(part) from data
            if isinstance(data, Exception):
                raise _unread(part, f"{type(data).__name__}: {data}") from data
        return read

    # ------------------------------------------------------------------ small files that are read and written whole

    def load(self, name: str) -> bytes | None:
        """Return what is in a file; None where it cannot be read."""
        try:
            if not is_remote(name):
                return Path(name).read_bytes()
            system, path = self.system(name)
            data: bytes = system.cat_file(path)
        except Exception:  # noqa: BLE001  # of any file system; it is made again
            return None
        return data

    def save(self, name: str, data: bytes) -> bool:
        """Write a file that is there as a whole or not at all, however many processes write it; return whether."""
        try:
            if is_remote(name):
                system, path = self.system(name)
                system.pipe_file(path, data)
            else:
                write_whole(Path(name), methodcaller("write", data))
        except Exception:  # noqa: BLE001  # of any file system: it is made again next time
            return False
        return True


@contextmanager
def storage() -> Iterator[None]:
    """Make an `OSError` of what the package of a file system raises: of its own kinds, or as if there were no file."""
    try:
        yield
    except FileNotFoundError as error:
        cause = error.__cause__
        if cause is None or isinstance(cause, FileNotFoundError) or getattr(cause, "status", 0) in _NO_FILE:
            raise
        raise OSError(f"{type(cause).__name__}: {cause}") from error  # of HTTP: a server that is not there
    except (OSError, ResumableError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _unread(part: Part, error: object) -> DataError:
    return DataError(f"{part} cannot be read: {error}.\nLook after the storage, and resume from the last checkpoint.")


def _whole(part: Part, data: bytes) -> bytes:
    if len(data) > part.stop - part.start:
        raise DataError(
            f"{part} cannot be read: {len(data)} bytes came where {part.stop - part.start} were asked for.\n"
            "The server gives whole files only, so every sample would cost one. Put the file where ranges of it can be "
            "read, such as an object store, or on a local disk."
        )
    if len(data) != part.stop - part.start:
        raise DataError(
            f"{part} cannot be read: it has {len(data)} of these {part.stop - part.start} bytes.\n"
            "It was cut since it was opened. Copy it again, and start again from the last checkpoint."
        )
    return data


def _pread(number: int, part: Part) -> bytes:
    read = partial(os.pread, number)
    data = read(part.stop - part.start, part.start)
    while len(data) < part.stop - part.start:  # at most 2 GiB come at once
        more = read(part.stop - part.start - len(data), part.start + len(data))
        if not more:
            break
        data += more
    return data


def _compare(part: Part, before: Stamp, now: Stamp) -> None:
    if before != now:
        raise DataError(
            f"{part.name} was written again since it was opened.\n"
            f"  then: {before.size} bytes, {before.changed}\n  now:  {now.size} bytes, {now.changed}\n"
            "Other samples would be read from here on. Start again with the file as it is, or put the old one back."
        )


def _gone(part: Part) -> DataError:
    return DataError(
        f"{part} cannot be read: there is no such file any more.\n"
        "Samples would be left out. Put it back, and resume from the last checkpoint."
    )


# Patterns of files: braces as webdataset has them, then `*`, `?` and `[...]`.


def find_files(  # noqa: PLR0913  # words of its messages
    patterns: Any, files: Files, *, what: str, suffix: str, extra: str, but: str = " "
) -> list[str]:
    """Return the files that patterns stand for, in their order; those of one pattern by their names.

    Args:
        patterns: path or URL, a pattern, or several of them.
        files: looks for them.
        what: the files, for messages, as in "the {what} x.tar".
        suffix: of such a file's name, for messages.
        extra: with which braces can be read.
        but: end of the names of files that are left out.

    Raises:
        ConfigurationError: a pattern stands for nothing, or a file comes twice.
        MissingDependencyError: braceexpand is not installed.
    """
    given = [patterns] if isinstance(patterns, (str, os.PathLike)) else _listed(patterns, what, suffix)
    found: list[str] = []
    for pattern in given:
        if not isinstance(pattern, (str, os.PathLike)) or not os.fspath(pattern):
            raise _no_path(pattern, what, suffix)
        text = str(os.fspath(pattern))
        some = [name for one in _expand(text, suffix, extra) for name in files.find(one) if not name.endswith(but)]
        if not some:
            raise ConfigurationError(
                f"there is no file for {text!r}.\nThere would be nothing to read. Look after the folder and the "
                "pattern: {000..009} counts, * stands for any characters."
            )
        found += [name.removeprefix("file://") for name in some]
    if not found:
        raise ConfigurationError(f"no {what}s were given.\nThere would be nothing to read. Give at least one.")
    _refuse_twice(found, what)
    return found


def _listed(patterns: Any, what: str, suffix: str) -> list[Any]:
    try:
        return list(patterns)
    except TypeError:
        raise _no_path(patterns, what, suffix) from None


def _no_path(given: Any, what: str, suffix: str) -> ConfigurationError:
    return ConfigurationError(
        f"each {what} must be a path, a URL or a pattern of them, but one is {given!r}.\n"
        f'Nothing could be read. Give for instance "train-{{000..099}}{suffix}" or a list of paths.'
    )


def _expand(pattern: str, suffix: str, extra: str) -> list[str]:
    if "{" not in pattern or (not is_remote(pattern) and Path(pattern).exists()):
        return [pattern]
    try:
        from braceexpand import braceexpand  # noqa: PLC0415  # for such patterns only
    except ImportError as error:
        raise MissingDependencyError(
            f"the pattern {pattern!r} needs the package braceexpand.\nInstall it: {pip_install(extra)}"
        ) from error
    try:
        return list(braceexpand(pattern))
    except ValueError as error:
        raise ConfigurationError(
            f"the pattern {pattern!r} has braces that do not close: {error}.\n"
            f"Which files are meant could not be known. Write for instance train-{{000..099}}{suffix}."
        ) from error


def _refuse_twice(names: list[str], what: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        place = name if is_remote(name) else os.path.abspath(name)  # noqa: PTH100  # a link may be there on purpose
        if place in seen:
            also = "" if seen[place] == name else f", also as {seen[place]}"
            raise ConfigurationError(
                f"the {what} {name} is named twice{also}.\nIts samples would come twice in every epoch. Name it once; "
                "to have it more often than others, give it a weight in resumable.mix."
            )
        seen[place] = name


def base_of(name: str) -> str:
    """Return the last part of a path or URL."""
    return name.replace("\\", "/").rstrip("/").rpartition("/")[2]
