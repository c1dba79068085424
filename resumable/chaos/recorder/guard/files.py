"""The audit hook: judges each call that changes a file, and replaces links of the mirror with copies."""

from __future__ import annotations

import errno
import json
import os
import posix
import shutil
import sys
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import NoReturn

__all__ = ["GUARD", "REFUSED", "WRITING", "find_line", "hear"]

REFUSED = 78  # exit status of a process that was stopped: EX_CONFIG
WRITING = posix.O_WRONLY | posix.O_RDWR | posix.O_CREAT | posix.O_TRUNC | posix.O_APPEND
_LARGEST = 1 << 30  # bytes of a linked file that is copied because it is opened for writing
_SYSTEM = ("/dev/", "/proc/", "/sys/")
_CACHES = (
    *("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TMPDIR"),
    *("NUMBA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "PYTHONPYCACHEPREFIX"),
)
_LIBRARIES = (os.path.abspath(__file__).partition("/chaos/recorder/guard/")[0], f"{sys.base_prefix}/lib")
_CODE = (".py", ".pyc", ".so")
_MOST = 1000  # files that a process records


class _Thread(threading.local):
    trusted = 0  # running calls that the hook ignores
    saving = 0  # running calls of `torch.save` and similar functions


class Guard:
    """The guard of this process.

    Attributes:
        active: whether a plan is active; without one, nothing is rejected or recorded.
        installed: whether the hook is installed.
        case: real path of the case's directory.
        work: its mirror, in which the command runs.
        ledger: directory of the records of rejected writes, and of files read or written in place.
        saves: handles files that are saved, loaded and renamed; None if nothing is recorded.
        recent: the last file outside the case that was opened for reading; it may be the checkpoint.
        local: state of this thread.
    """

    def __init__(self) -> None:
        self.active = self.installed = False
        self.case = self.work = self.ledger = self.recent = self._project = ""
        self.saves: Any = None
        self.local = _Thread()
        self._words: list[str] = []
        self._home = ""
        self._exempt: tuple[str, ...] = ()
        self._told: set[str] = set()
        self._in_place: dict[str, bool] = {}  # files that this process wrote in place, and whether they existed before
        self._removed: set[str] = set()  # files among them that it removed afterwards
        self._read: set[str] = set()  # files of the case that it read before writing them
        self._earlier: set[str] | None = None  # files that earlier launches wrote in place

    def start(self, path: str) -> None:
        """Read a plan, and let paths of modules in the mirrored folder lead into the mirror."""
        with open(path, encoding="utf-8") as file:
            plan = json.load(file)
        self.ledger, self.case = plan["directory"], os.path.realpath(plan["case"])
        self.work, self._project, self._words = f"{self.case}/work", plan.get("project", ""), plan.get("words", [])
        home = self._home = os.path.expanduser("~")
        folders = [os.environ.get(name) for name in _CACHES] + [f"{home}/.cache", f"{home}/.triton"]
        self._exempt = tuple(f"{os.path.realpath(one)}/" for one in folders if one)
        self.active = True
        mirrored = {path: self.mirrored(path) for path in sys.path}
        sys.path[:] = [mirrored[path] if os.path.isdir(mirrored[path]) else path for path in sys.path]

    def mirrored(self, path: str) -> str:
        """Return the path in the mirror of a path in the mirrored folder; other paths are unchanged."""
        if self._project and _is_below(path, self._project) and not _is_below(path, self.case):
            return self.work + path[len(self._project) :]
        return path

    def holds(self, real: str) -> bool:
        """Return whether a real path belongs to the case."""
        return _is_below(real, self.case)

    def name(self, path: Any) -> str:
        """Return the path of a file in its case, which is the same in each case; other paths start with `/`."""
        real = os.path.realpath(os.fsdecode(path))
        return real.removeprefix(f"{self.case}/").removeprefix("work/") if self.active else real

    @contextmanager
    def trusted(self) -> Iterator[None]:
        """Let the hook ignore this thread."""
        self.local.trusted += 1
        try:
            yield
        finally:
            self.local.trusted -= 1

    # Judges a write.

    def check(self, path: Any, at: Any = -1, *, follow: bool = True, flags: int = 0, cached: bool = True) -> None:
        """Let a call pass that changes a file of the case; end the process, or raise, for any other.

        Args:
            path: of the file; a descriptor for an open one.
            at: descriptor of the directory to which a relative path is relative; -1 for the working directory.
            follow: whether the call follows a link at the end of the path.
            flags: with which the file is opened.
            cached: whether a cache may be changed; checkpoints do not belong there.

        Raises:
            PermissionError: it is in a hidden folder of the user's home, which libraries can do without.
        """
        text = f"/proc/self/fd/{path}" if isinstance(path, int) else os.fsdecode(path)
        if not text.startswith("/"):
            text = os.path.join(os.readlink(f"/proc/self/fd/{at}") if _is_open(at) else posix.getcwd(), text)
        with self.trusted():
            real = self._own(text, follow=follow or isinstance(path, int), empty=bool(flags & posix.O_TRUNC))
        if self.holds(real) or (real.startswith(_SYSTEM) and (cached or not real.startswith("/dev/shm/"))):  # noqa: S108  # may contain checkpoints
            return
        temporary = _is_below(real, os.path.realpath(os.environ.get("TMPDIR", "/dev/null")))
        if temporary or (cached and (f"{real}/".startswith(self._exempt) or "/__pycache__/" in f"{real}/")):
            return
        if real.startswith(f"{self._home}/."):
            raise PermissionError(errno.EACCES, "a chaos run changes nothing outside its case", text)
        self._refuse_write(real)

    def _own(self, path: str, *, follow: bool, empty: bool = False) -> str:
        """Return the real path of a file, after links that lead out of the case were replaced with copies."""
        while True:
            folder, name = os.path.split(path.rstrip("/") or "/")
            real = os.path.realpath(path) if follow else os.path.join(os.path.realpath(folder), name)
            if self.holds(real) or real.startswith(_SYSTEM):
                return real
            link = self._link_out(path if follow else folder)
            if not link or not os.path.exists(link):
                return real
            self._copy(link, empty=empty and os.path.realpath(link) == real)

    def _link_out(self, path: str) -> str:
        """Return the first link of the case on the way down a path that leads out of it, if there is one."""
        at = ""
        for part in path.split("/"):
            if part == "..":
                at = os.path.dirname(at)
            elif part not in {"", "."}:
                link = f"{at}/{part}"
                at = os.path.realpath(link)
                if self.holds(link) and os.path.islink(link) and not self.holds(at):
                    return link
        return ""

    def _copy(self, link: str, *, empty: bool) -> None:
        """Replace a link with a copy of the file, or with a folder of links."""
        real, draft = os.path.realpath(link), f"{self.case}/draft-{os.getpid()}-{threading.get_ident()}"
        if os.path.isdir(real):
            posix.mkdir(draft)
            for name in posix.listdir(real):
                posix.symlink(f"{real}/{name}", f"{draft}/{name}")
            with suppress(OSError):  # another process was faster
                posix.unlink(link)
                posix.rename(draft, link)
            shutil.rmtree(draft, ignore_errors=True)
            return
        if not empty and (size := posix.stat(real).st_size) > _LARGEST:
            self.refuse(
                f"the command opens {real} for writing, a file of {size / 1e9:.1f} GB.\nEach case would need a copy of "
                'it. If the program only reads it, open it for reading: np.memmap needs mode="r".'
            )
        (shutil.copymode if empty else shutil.copy2)(real, _touched(draft))
        posix.rename(draft, link)

    def _refuse_write(self, real: str) -> NoReturn:
        place = self.mirrored(real)
        near = f"the relative path {place[len(self.work) + 1 :]}" if place != real else "a relative path"
        file, line = find_line()
        where = f" ({os.path.basename(file)}, line {line})" if file else ""
        option = next((word for word in self._words[1:] if _names(word, real)), "")
        how = f"Replace {option} in the command with a relative path" if option else f"Use {near}"
        self.refuse(
            f"the command would have written to {real}, which is outside its case{where}.\n  the case mirrors "
            f"{self._project} in {self.work}\nA chaos run changes nothing else, so it was stopped. {how}, which leads "
            "into the case, or pass the folder as an option with {dir}, as in --out {dir}."
        )

    def refuse(self, why: str) -> NoReturn:
        """End this process, and report the reason to the chaos run."""
        self._write(kind="stopped", why=why)
        with suppress(Exception):
            sys.stderr.write(f"resumable chaos: {why}\n")
            sys.stdout.flush()
            sys.stderr.flush()
        posix._exit(REFUSED)  # noqa: SLF001  # public as os._exit; an exception could be caught, and training continue

    # Records what a process does with the files of the case.
    #
    # A file that is written directly under the name that a later launch reads is incomplete after a kill. Recorded
    # once per process and file: that it was written in place, and whether it existed; that it was read before this
    # process wrote it, if an earlier launch wrote it in place; and that it was opened to append, as logs are.

    def opened(self, path: Any, flags: int) -> None:
        """Record that a file is about to be opened."""
        text = os.path.join(posix.getcwd(), os.fsdecode(path))
        if not text.startswith(f"{self.work}/"):
            if not flags & WRITING and not text.endswith(_CODE) and not text.startswith((self.case, self.ledger)):
                self.recent = text
            return
        name = self.name(text)
        if not flags & WRITING:
            self._opened_to_read(name, text)
            return
        size, known = _size(text), self._in_place.get(name)
        over = size > 0 or name in self._removed
        if flags & posix.O_APPEND:
            self.tell("appended", name, size=max(size, 0))
        elif (size < 0 or flags & posix.O_TRUNC) and (known is None or over > known) and len(self._in_place) < _MOST:
            self._write(kind="in place", path=name, time=time.time(), over=over)
            self._in_place[name] = over

    def _opened_to_read(self, name: str, path: str) -> None:
        if name in self._in_place or name in self._read or _size(path) < 0:
            return
        if name in self._of_earlier_starts():
            self._read.add(name)
            self._write(kind="read in place", path=name, time=time.time())

    def removed(self, path: Any) -> None:
        """Remember that a file is removed: the next write to its path replaces it."""
        if self._in_place and (name := self.name(path)) in self._in_place and len(self._removed) < _MOST:
            self._removed.add(name)

    def tell(self, kind: str, path: str, **more: int) -> None:
        """Record once that a file was read or opened to append."""
        if f"{kind} {path}" not in self._told and len(self._told) < _MOST:
            self._told.add(f"{kind} {path}")
            self._write(kind=kind, path=path, **more)

    def _of_earlier_starts(self) -> set[str]:
        if self._earlier is None:
            folder, own = os.path.split(self.ledger)
            starts = [name for name in posix.listdir(folder) if name.startswith("attempt-") and name != own]
            self._earlier = {name for start in starts for name in self._read_ledgers(f"{folder}/{start}")}
        return self._earlier

    def _read_ledgers(self, start: str) -> set[str]:
        found: set[str] = set()
        for ledger in posix.listdir(start):
            if ledger.startswith("files-"):
                with self.trusted(), open(f"{start}/{ledger}", "rb") as file:
                    events = [json.loads(line) for line in file if line.endswith(b"\n")]
                found.update(event["path"] for event in events if event["kind"] == "in place")
        return found

    def _write(self, **event: Any) -> None:
        path = f"{self.ledger}/files-{os.getpid()}.jsonl"
        with self.trusted():
            file = posix.open(path, posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | posix.O_CLOEXEC, 0o644)
            try:
                posix.write(file, json.dumps(event).encode() + b"\n")
            finally:
                posix.close(file)


GUARD = Guard()


def _open(path: Any, _: Any, flags: Any) -> None:
    if isinstance(path, int) or not isinstance(flags, int):
        return
    if flags & WRITING:
        GUARD.check(path, follow=not flags & posix.O_NOFOLLOW, flags=flags)
    GUARD.opened(path, flags)


def _rename(source: Any, target: Any, at: Any, to: Any) -> None:
    GUARD.check(source, at, follow=False)
    GUARD.check(target, to, follow=False)
    if GUARD.saves is not None and not _is_open(at) and not _is_open(to):
        GUARD.saves.renamed(source, target)


def _remove(path: Any, at: Any) -> None:
    GUARD.check(path, at, follow=False)
    GUARD.removed(path)


def _link(source: Any, target: Any, at: Any, to: Any) -> None:
    GUARD.check(source, at)  # a write through the new name would change the old file
    GUARD.check(target, to, follow=False)


# Checks the changed paths of each event.
_EVENTS: dict[str, Callable[..., None]] = {
    "open": _open,
    "os.remove": _remove,
    "os.rename": _rename,
    "os.link": _link,
    "os.symlink": lambda _, path, at: GUARD.check(path, at, follow=False),
    "os.mkdir": lambda path, _, at: GUARD.check(path, at, follow=False),
    "os.rmdir": lambda path, at: GUARD.check(path, at, follow=False),
    "os.truncate": lambda path, _: GUARD.check(path),
    "os.chmod": lambda path, _, at: GUARD.check(path, at),
    "os.chown": lambda path, _, __, at: GUARD.check(path, at),
    "os.utime": lambda path, _, __, at: GUARD.check(path, at),
    "os.chflags": lambda path, _: GUARD.check(path),
    "os.setxattr": lambda path, *_: GUARD.check(path),
    "os.removexattr": lambda path, *_: GUARD.check(path),
    "shutil.rmtree": lambda path, *_: GUARD.check(path),
    "sqlite3.connect": lambda path: None if str(path).startswith((":", "file:")) or not path else GUARD.check(path),
}


def hear(event: str, args: tuple[Any, ...], events: Any = _EVENTS, guard: Any = GUARD) -> None:
    """Judge an event. The tables are defaults, because a module's names are gone when the interpreter ends."""
    if event in events and guard.active and not guard.local.trusted:
        events[event](*args)


def _is_open(at: Any) -> bool:
    return isinstance(at, int) and at >= 0


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder) and (len(path) == len(folder) or path[len(folder)] == "/")


def _size(path: str) -> int:
    """Return the size of a file, or -1 if it does not exist."""
    try:
        return posix.stat(path).st_size
    except OSError:
        return -1


def _touched(path: str) -> str:
    posix.close(posix.open(path, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC, 0o600))
    return path


def _names(word: str, real: str) -> bool:
    """Return whether a word of the command is the path of a file, or of a folder above it."""
    path = word.rpartition("=")[2]
    return path.startswith("/") and len(path) > 1 and _is_below(real, os.path.realpath(path))


def find_line() -> tuple[str, int]:
    """Return file and line of the program that calls: the innermost ones of no library, Python or this package."""
    frame: Any = sys._getframe(1)  # noqa: SLF001  # no other way to the callers
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*_LIBRARIES, "<frozen")) and "site-packages" not in file:
            return file, frame.f_lineno
        frame = frame.f_back
    return "", 0
