"""Reads ranges of files, local or on any filesystem that fsspec supports. Files are opened per process."""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from contextlib import contextmanager, suppress
from functools import partial
from glob import glob, has_magic
from operator import methodcaller
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple
from weakref import ref

from resumable._distribution import pip_install
from resumable._durable import write_whole
from resumable._storage import open_url
from resumable.errors import ConfigurationError, DataError, MissingDependencyError, ResumableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


__all__ = ["Descriptor", "Files", "Part", "Stamp", "base_of", "find_files", "is_remote", "limit_open", "storage"]

_NO_FILE = (404, 410)  # HTTP status codes
_OPEN = 64  # maximum number of open files of one source
_OPEN_IN_ALL = 200  # of all sources of a process; a mapped file has two descriptors, and the usual limit is 1024
_TAGS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "last_modified", "mtime", "updated", "created")


class Files:
    """Reads files by path or URL. Open files belong to one process. Forked or pickled copies open them again.

    Args:
        options: for the filesystem of the URLs.
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

    # ------------------------------------------------------------------ filesystems

    def system(self, name: str) -> tuple[Any, str]:
        """Return the filesystem of a URL, and the path on it.

        Raises:
            MissingDependencyError: its package is not installed.
            ConfigurationError: fsspec does not know the protocol.
        """
        self._own()
        protocol = name.partition("://")[0]
        if "::" in name or protocol not in self._systems:  # "::" chains filesystems
            self._systems[protocol], path = open_url(name, self._options)
            return self._systems[protocol], path
        system = self._systems[protocol]
        return system, system._strip_protocol(name)  # noqa: SLF001  # as fsspec's own functions do

    def find(self, pattern: str) -> list[str]:
        """Return the files that match a pattern with `*`, `?` or `[...]`, in alphabetical order.

        A name without these characters, or of an existing local file, is returned unchanged.
        """
        if not has_magic(pattern) or (not is_remote(pattern) and Path(pattern).exists()):
            return [pattern]
        if not is_remote(pattern):
            return sorted(glob(pattern, recursive=True))  # noqa: PTH207  # names may be any text
        system, path = self.system(pattern)
        system.invalidate_cache()  # other processes may have written files
        try:
            with storage():
                return sorted(system.unstrip_protocol(found) for found in system.glob(path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigurationError(
                f"the files of {pattern} cannot be listed: {error}.\nCheck the storage and its permissions."
            ) from error

    def stamp(self, name: str) -> Stamp:
        """Return the current stamp of a file.

        Raises:
            FileNotFoundError: the file does not exist.
            OSError: the storage fails.
        """
        if not is_remote(name):
            found = os.stat(name)  # noqa: PTH116  # names may be any text
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
        """Open a file for reading."""
        if not is_remote(name):
            return Path(name).open("rb")
        system, path = self.system(name)
        opened: BinaryIO = system.open(path, "rb")
        return opened

    def read(self, parts: Sequence[Part], stamps: Mapping[str, Stamp]) -> list[bytes]:
        """Read parts of files. Remote parts are requested at the same time.

        Args:
            parts: the parts to read.
            stamps: expected stamps of the files. They are checked at each read, and those of remote files at the first
                read in a process.

        Raises:
            DataError: a file was removed or rewritten, or the storage fails.
        """
        self._own()
        if len(parts) == 1 and not is_remote(parts[0].name):  # the most common case, in half the time
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
                with suppress(KeyError):  # closed by another source
                    self._open.move_to_end(part.name)
            data, now = _pread(file.number, part), _stamp_of(file)  # in this order: it may be rewritten meanwhile
        except FileNotFoundError as error:
            raise _gone(part) from error
        except OSError as error:
            raise _unread(part, error) from error
        if len(data) == part.stop - part.start:  # a file that is too short has its own error
            _compare(part, stamp, now)
        return data

    def _opened(self, part: Part, stamp: Stamp) -> Descriptor:
        file = Descriptor(part.name)
        _compare(part, stamp, _stamp_of(file))
        self._open[part.name] = file
        limit_open(partial(_close, ref(self), part.name))
        if len(self._open) > _OPEN:
            self._open.popitem(last=False)  # closed as soon as no thread reads it
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

    # ------------------------------------------------------------------ small files

    def load(self, name: str) -> bytes | None:
        """Return the content of a file; None if it cannot be read."""
        try:
            if not is_remote(name):
                return Path(name).read_bytes()
            system, path = self.system(name)
            data: bytes = system.cat_file(path)
        except Exception:  # noqa: BLE001  # filesystems may raise anything; the file is created again
            return None
        return data

    def save(self, name: str, data: bytes) -> bool:
        """Write a file atomically, even if several processes write it. Return whether it was written."""
        try:
            if is_remote(name):
                system, path = self.system(name)
                system.pipe_file(path, data)
            else:
                write_whole(Path(name), methodcaller("write", data))
        except Exception:  # noqa: BLE001  # filesystems may raise anything; the file is created again next time
            return False
        return True


class Stamp(NamedTuple):
    """Changes if a file is rewritten: its size in bytes, and a time or tag.

    `changed` is the modification time in nanoseconds. For a remote file it is its tag or time, or empty if it has none.
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


class Descriptor:
    """A file that stays open for reading until it is no longer referenced."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self.number)


_closing: deque[Callable[[], object]] = deque()


def limit_open(close: Callable[[], object]) -> None:
    """Note that a file was opened. If this process has too many, close the one that was opened first.

    Args:
        close: drops the file, which is opened again when it is read. It must take no lock.
    """
    _closing.append(close)
    if len(_closing) > _OPEN_IN_ALL:
        _closing.popleft()()


def _close(owner: ref[Files], name: str) -> None:
    files = owner()
    if files is not None:
        files._open.pop(name, None)  # noqa: SLF001  # of this module


def _stamp_of(file: Descriptor) -> Stamp:
    found = os.fstat(file.number)
    return Stamp(found.st_size, str(found.st_mtime_ns))


def is_remote(name: str) -> bool:
    """Return whether a name is a URL that fsspec must open."""
    return "://" in name


def base_of(name: str) -> str:
    """Return the last part of a path or URL."""
    return name.replace("\\", "/").rstrip("/").rpartition("/")[2]


@contextmanager
def storage() -> Iterator[None]:
    """Convert errors of a filesystem's package to `OSError`. A `FileNotFoundError` may mean that the server is down."""
    try:
        yield
    except FileNotFoundError as error:
        cause = error.__cause__
        if cause is None or isinstance(cause, FileNotFoundError) or getattr(cause, "status", 0) in _NO_FILE:
            raise
        raise OSError(f"{type(cause).__name__}: {cause}") from error  # HTTP: the server is down
    except (OSError, ResumableError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _unread(part: Part, error: object) -> DataError:
    return DataError(f"{part} cannot be read: {error}.\nCheck the storage, then resume from the last checkpoint.")


def _whole(part: Part, data: bytes) -> bytes:
    if len(data) > part.stop - part.start:
        raise DataError(
            f"{part} cannot be read: the server sent {len(data)} bytes instead of {part.stop - part.start}.\n"
            "It does not support range requests, so each sample would need the whole file. Move the file to storage "
            "that supports them, such as an object store or a local disk."
        )
    if len(data) != part.stop - part.start:
        raise DataError(
            f"{part} cannot be read: only {len(data)} of these {part.stop - part.start} bytes exist.\n"
            "The file was truncated since it was opened. Copy it again, then resume from the last checkpoint."
        )
    return data


def _pread(number: int, part: Part) -> bytes:
    read = partial(os.pread, number)
    data = read(part.stop - part.start, part.start)
    while len(data) < part.stop - part.start:  # a read returns at most 2 GiB
        more = read(part.stop - part.start - len(data), part.start + len(data))
        if not more:
            break
        data += more
    return data


def _compare(part: Part, before: Stamp, now: Stamp) -> None:
    if before != now:
        raise DataError(
            f"{part.name} was rewritten since it was opened.\n"
            f"  then: {before.size} bytes, {before.changed}\n  now:  {now.size} bytes, {now.changed}\n"
            "Different samples would be read from here on. Restore the old file, or start a new run with the new one."
        )


def _gone(part: Part) -> DataError:
    return DataError(
        f"{part} cannot be read: the file no longer exists.\n"
        "Samples would be missing. Restore the file, then resume from the last checkpoint."
    )


# ---------------------------------------------------------------------- patterns: braces, `*`, `?` and `[...]`


def find_files(  # noqa: PLR0913  # words for its messages
    patterns: Any, files: Files, *, what: str, suffix: str, extra: str, but: str = " "
) -> list[str]:
    """Return the files that match patterns, in the order of the patterns. Within a pattern, the order is alphabetical.

    Args:
        patterns: a path, a URL or a pattern, or several of them.
        files: finds the files.
        what: kind of the files, for messages, as in "the {what} x.tar".
        suffix: of the file names, for messages.
        extra: of this package that installs braceexpand.
        but: skip names with this ending.

    Raises:
        ConfigurationError: a pattern matches no file, or a file is listed twice.
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
                f"no file matches {text!r}.\nCheck the folder and the pattern: {{000..009}} expands to a range of "
                "numbers, and * matches any characters."
            )
        found += [name.removeprefix("file://") for name in some]
    if not found:
        raise ConfigurationError(f"the list of {what}s is empty.\nPass at least one {what}.")
    _refuse_twice(found, what)
    return found


def _listed(patterns: Any, what: str, suffix: str) -> list[Any]:
    try:
        return list(patterns)
    except TypeError:
        raise _no_path(patterns, what, suffix) from None


def _no_path(given: Any, what: str, suffix: str) -> ConfigurationError:
    return ConfigurationError(
        f"each {what} must be a path, a URL or a pattern, but one is {given!r}.\n"
        f'Pass for example "train-{{000..099}}{suffix}" or a list of paths.'
    )


def _expand(pattern: str, suffix: str, extra: str) -> list[str]:
    if "{" not in pattern or (not is_remote(pattern) and Path(pattern).exists()):
        return [pattern]
    try:
        from braceexpand import braceexpand  # noqa: PLC0415  # only needed for braces
    except ImportError as error:
        raise MissingDependencyError(
            f"the pattern {pattern!r} needs the package braceexpand.\nInstall it: {pip_install(extra)}"
        ) from error
    try:
        return list(braceexpand(pattern))
    except ValueError as error:
        raise ConfigurationError(
            f"the pattern {pattern!r} has unbalanced braces: {error}.\nWrite for example train-{{000..099}}{suffix}."
        ) from error


def _refuse_twice(names: list[str], what: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        path = name if is_remote(name) else os.path.abspath(name)  # noqa: PTH100  # a link may be there on purpose
        if path in seen:
            also = "" if seen[path] == name else f", the first time as {seen[path]}"
            raise ConfigurationError(
                f"the {what} {name} is listed twice{also}.\nEvery epoch would have its samples twice. List it once. To "
                "read it more often than others, use weights in resumable.mix."
            )
        seen[path] = name
