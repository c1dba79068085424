"""CheckpointStore under SIGKILL, power cuts, failing storage, and other threads.

The kills are real: this file is also a script, whose children kill themselves at each file operation of a save.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import fsspec
import pytest
import torch
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from resumable import checkpoint
from resumable.checkpoint import MARKER, CheckpointStore
from resumable.errors import CheckpointError, CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROJECT = Path(__file__).parent.parent
LEFTOVER = "0123456789abcdef.pt"


def content(step: int, version: int = 0) -> dict[str, Any]:
    """Content of 20 kB, so that a torn data file can be on the disk in part."""
    return {"step": step, "version": version, "weight": torch.full((5_000,), float(step))}


def prepared(root: str | Path) -> None:
    """Make a store of steps 1, 2 and 3 with the leftovers of two crashed saves."""
    store = CheckpointStore(root)
    for step in (1, 2, 3):
        store.save(step, content(step))
    for step in (0, 2):
        leave(Path(root), step)


def leave(root: Path, step: int, name: str = LEFTOVER) -> Path:
    path = root / f"step-{step:012d}" / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(b"torn")
    return path


def found(root: str | Path) -> tuple[int, int] | None:
    """Give step and version of the newest checkpoint; no committed one may look corrupt, not even an old one."""
    store = CheckpointStore(root)
    for step in store.steps():
        assert torch.equal(store.load(step)["weight"], content(step)["weight"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        latest = store.latest()
    return latest and (latest["step"], latest["version"])


def assert_tidy(root: Path, store: CheckpointStore) -> None:
    names = [path.parent.name + ("/" + MARKER if path.name == MARKER else "/data") for path in root.rglob("*.*")]
    directories = [f"step-{step:012d}" for step in store.steps()]
    assert sorted(names) == sorted(f"{name}/{kind}" for name in directories for kind in (MARKER, "data"))
    assert sorted(path.name for path in root.iterdir()) == directories


# SIGKILL at every file operation.

OPERATIONS = {"open", "write", "flush", "fsync", "close", "replace", "mkdir", "unlink", "remove", "rmdir", "listdir"}
SCENARIOS: dict[str, tuple[Callable[[str | Path], None], int, list[tuple[int, int] | None]]] = {
    "first": (lambda root: None, 1, [None, (1, 1)]),
    "next": (prepared, 4, [(3, 0), (4, 1)]),
    "again": (prepared, 3, [(3, 0), (3, 1)]),
}


def killed_in_child(point: int, action: Callable[[], None]) -> bool:
    """Run `action` in a child that kills itself just before its n-th file operation; tell if it came to that."""
    counter = itertools.count(1)

    def kill(frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and function.__name__ in OPERATIONS and next(counter) == point:
            os.kill(os.getpid(), signal.SIGKILL)

    if (child := os.fork()) == 0:
        try:
            sys.setprofile(kill)
            action()
            sys.setprofile(None)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), status
    return status == signal.SIGKILL


def save_under_fire(scenario: str) -> int:
    """Kill a save at point 1, 2, 3, ... until one ends unharmed; check the store after each; count the points."""
    prepare, step, allowed = SCENARIOS[scenario]
    outcomes = []
    with tempfile.TemporaryDirectory() as directory:
        model, root = Path(directory) / "model", Path(directory) / "run"
        prepare(model)
        for point in itertools.count(1):
            shutil.rmtree(root, ignore_errors=True)
            if model.exists():
                shutil.copytree(model, root)
            harmed = killed_in_child(point, lambda: CheckpointStore(root, keep=1).save(step, content(step, 1)))
            outcomes.append(allowed.index(found(root)))
            store = CheckpointStore(root, keep=2)
            store.save(9, content(9))
            assert found(root) == (9, 0)
            assert_tidy(root, store)
            if not harmed:
                break
    assert outcomes == sorted(outcomes), "a committed checkpoint was lost again at a later point"
    assert outcomes[0] == 0
    assert outcomes[-2:] == [1, 1], "the kills never came after the commit"
    return len(outcomes) - 1


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_sigkill_at_every_file_operation_leaves_the_old_or_the_new_checkpoint(scenario: str) -> None:
    command = [sys.executable, __file__, scenario]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30


# A power cut: what no fsync covered may be on the disk, or not, in any combination.


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
    """Looks at every possible power cut before each file operation, and crashes the process at a chosen one."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: int = 0) -> None:
        self.top, self.copy = tmp_path / "disk", tmp_path / "copy"
        self.top.mkdir()
        self.root = self.top / "runs" / "digits"
        self.disk, self.looking = Disk(self.top), False
        self.allowed: list[int | None] = [None]  # the steps that a new process may find
        self.countdown, self.dead, self.cuts = crash_at, False, 0
        for name in ("fsync", "replace", "mkdir", "unlink", "remove", "rmdir"):
            monkeypatch.setattr(os, name, self.watched(name, getattr(os, name)))

    def watched(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def watch(target: Any, *args: Any, **kwargs: Any) -> Any:
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
            step = found(self.copy / "runs" / "digits")
            assert (step and step[0]) in self.allowed, (step, self.allowed, list(self.disk.names))
            shutil.rmtree(self.copy)
            self.cuts += 1
        self.looking = False

    def save(self, step: int) -> bool:
        """Save with an eye on every power cut; tell whether the process lived."""
        self.allowed = [*self.allowed, step]
        try:
            CheckpointStore(self.root, keep=2).save(step, content(step))
        except Crash:
            self.dead = False
            return False
        self.allowed = [step]
        self.disk.seen.clear()
        self.look()
        return True


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the files' bytes are read through Linux's /proc")
def test_a_power_cut_at_any_time_leaves_the_old_or_the_new_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts = PowerCuts(tmp_path, monkeypatch)
    assert all(cuts.save(step) for step in (1, 2, 3, 3, 4))
    assert cuts.cuts > 50
    cuts.disk.close()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the files' bytes are read through Linux's /proc")
@pytest.mark.parametrize("crashed", [3, 4])
def test_a_power_cut_after_a_crash_and_a_restart_leaves_a_whole_checkpoint(tmp_path: Path, crashed: int) -> None:
    for point in itertools.count(1):
        (tmp_path / str(point)).mkdir()
        with pytest.MonkeyPatch.context() as monkeypatch:
            cuts = PowerCuts(tmp_path / str(point), monkeypatch)
            assert all(cuts.save(step) for step in (1, 2, 3))
            cuts.countdown = point
            harmed = not cuts.save(crashed)
            cuts.countdown = 0
            assert cuts.save(9)
            cuts.disk.close()
        assert_tidy(cuts.root, CheckpointStore(cuts.root))
        if not harmed:
            break
    assert point > 7


# An object store, and faults in it.


class BucketFile(AbstractBufferedFile):  # type: ignore[misc]
    """An upload in parts that becomes an object as a whole, at the end."""

    def _initiate_upload(self) -> None:
        self.parts: list[bytes] = []

    def _upload_chunk(self, final: bool = False) -> None:
        with self.fs.request():
            self.parts.append(self.buffer.getvalue())
            if final:
                self.fs.objects[self.path] = b"".join(self.parts)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.fs.cat_file(self.path, start, end)  # type: ignore[no-any-return]


class Bucket(AbstractFileSystem):  # type: ignore[misc]
    """Whole objects, no directories, listings that are cached until told otherwise, and a fault at a chosen request.

    Args:
        fail_at: number of the request that fails, from 1; 0 for none.
        fault: `lost`: it does nothing; `late`: it is done, but reported as failed; `outage`: all that follow fail, too.
    """

    protocol = "bucket"
    cachable = False  # each store has its own listings, like a process of its own
    objects: ClassVar[dict[str, bytes]] = {}

    def __init__(self, fail_at: int = 0, fault: str = "lost", **options: Any) -> None:
        super().__init__(**options)
        self.fail_at, self.fault, self.count = fail_at, fault, 0

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        self.count += 1
        bad = self.count == self.fail_at or (self.fault == "outage" and 0 < self.fail_at < self.count)
        if not bad or self.fault == "late":
            yield
        if bad:
            raise ConnectionResetError(errno.ECONNRESET, f"request {self.count}")

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        path = self._strip_protocol(path)
        if path not in self.dircache:
            with self.request():
                below = {key[len(path) + 1 :].partition("/")[::2] for key in self.objects if key.startswith(path + "/")}
            self.dircache[path] = [self._entry(f"{path}/{name}", rest) for name, rest in below]
        if not self.dircache[path]:
            raise FileNotFoundError(path)
        return self.dircache[path] if detail else [entry["name"] for entry in self.dircache[path]]

    def _entry(self, key: str, rest: str) -> dict[str, Any]:
        return {"name": key, "type": "directory" if rest else "file", "size": len(self.objects.get(key, b""))}

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.pop(path, None) if path else self.dircache.clear()

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        with self.request():
            if path not in self.objects and not any(key.startswith(path + "/") for key in self.objects):
                raise FileNotFoundError(path)
        return self._entry(path, "" if path in self.objects else "below")

    def _open(self, path: str, mode: str = "rb", **options: Any) -> BucketFile:
        return BucketFile(self, path, mode, block_size=4_000)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        with self.request():
            if path not in self.objects:
                raise FileNotFoundError(path)
        return self.objects[path][start:end]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        with self.request():
            self.objects[path] = value

    def rm_file(self, path: str) -> None:
        with self.request():
            self.objects.pop(path, None)


URL = "bucket://b/run"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The objects of steps 1, 2 and 3."""
    fsspec.register_implementation("bucket", Bucket, clobber=True)
    monkeypatch.setattr(Bucket, "objects", {})
    for step in (1, 2, 3):
        CheckpointStore(URL).save(step, content(step))
    Bucket.objects[f"b/run/step-{2:012d}/{LEFTOVER}"] = b"torn"
    return Bucket.objects


def faulty(fail_at: int, fault: str) -> CheckpointStore:
    return CheckpointStore(URL, keep=2, storage_options={"fail_at": fail_at, "fault": fault})


def test_an_object_store_needs_no_directories(bucket: dict[str, bytes]) -> None:
    store = CheckpointStore(URL, keep=2)
    store.save(4, content(4))
    assert store.steps() == [3, 4]
    assert found(URL) == (4, 0)
    assert len(bucket) == 4


def test_a_cached_listing_hides_nothing(bucket: dict[str, bytes]) -> None:
    reader = CheckpointStore(URL)
    assert reader.steps() == [1, 2, 3]
    CheckpointStore(URL, keep=1).save(4, content(4))
    assert reader.steps() == [4]
    assert reader.latest_step() == 4


@pytest.mark.parametrize("step", [3, 4])
@pytest.mark.parametrize("fault", ["lost", "late", "outage"])
def test_a_fault_at_every_request_of_a_save(bucket: dict[str, bytes], fault: str, step: int) -> None:
    before = dict(bucket)
    told: set[str] = set()
    for fail_at in itertools.count(1):
        bucket.clear()
        bucket.update(before)
        outcome = save_with_fault(fail_at, fault, step)
        told.add(outcome)
        allowed = {"saved": [(step, 1)], "was not saved": [(3, 0)], "may or may not be saved": [(3, 0), (step, 1)]}
        assert found(URL) in allowed[outcome]
        store = CheckpointStore(URL, keep=2)
        store.save(9, content(9))
        assert found(URL) == (9, 0)
        assert len(bucket) == 2 * len(store.steps()) == 4
        if not fault_fired(fail_at, fault, step, before):
            break
    assert told == {"saved", "was not saved", "may or may not be saved"}


def save_with_fault(fail_at: int, fault: str, step: int) -> str:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        error = error_of(lambda: faulty(fail_at, fault).save(step, content(step, 1)))
    if error is not None:
        assert isinstance(error.__cause__, ConnectionResetError)
        return "may or may not be saved" if "may or may not" in str(error) else "was not saved"
    for warning in seen:
        assert warning.category is RuntimeWarning
        assert f"step {step} is saved" in str(warning.message)
        assert "tries again" in str(warning.message)
    return "saved"


def fault_fired(fail_at: int, fault: str, step: int, before: dict[str, bytes]) -> bool:
    """Tell whether a save makes so many requests, by doing it again without a fault."""
    Bucket.objects.clear()
    Bucket.objects.update(before)
    store = faulty(0, fault)
    store.save(step, content(step, 1))
    return bool(store._files.filesystem.count >= fail_at)


@pytest.mark.parametrize("fault", ["lost", "outage"])
def test_a_fault_while_reading_is_no_corruption_and_no_first_start(bucket: dict[str, bytes], fault: str) -> None:
    for method in ("latest", "latest_step", "steps"):
        for fail_at in itertools.count(1):
            if (error := error_of(lambda: read(method, fail_at, fault))) is None:  # noqa: B023 - called now
                break
            assert not isinstance(error, CorruptCheckpointError)
            assert isinstance(error.__cause__, ConnectionResetError)
            assert "try again" in str(error)
        assert fail_at > 2


def read(method: str, fail_at: int, fault: str) -> Any:
    return getattr(faulty(fail_at, fault), method)()


def error_of(action: Callable[[], Any]) -> CheckpointError | None:
    try:
        action()
    except CheckpointError as error:
        return error
    return None


def test_a_truncated_upload_is_not_committed(bucket: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BucketFile, "_initiate_upload", lambda file: setattr(file, "parts", Forgetful()))
    with pytest.raises(CheckpointError, match=r"(?s)step 4 was not saved.*holds \d+ bytes after \d+ were written"):
        CheckpointStore(URL).save(4, content(4))
    assert found(URL) == (3, 0)


class Forgetful(list[bytes]):
    """Loses all parts but the last."""

    def append(self, part: bytes) -> None:
        self[:] = [part]


# Leftovers of crashed saves, and other writers.


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Steps 1, 2 and 3."""
    made = CheckpointStore(tmp_path / "run")
    for step in (1, 2, 3):
        made.save(step, content(step))
    return made


def files(root: str | Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path(root).rglob("*")) if path.is_file()}


def test_leftovers_below_the_new_step_are_removed_and_others_are_not(store: CheckpointStore) -> None:
    gone = [leave(Path(store.root), 2), leave(Path(store.root), 2, "00112233445566ff.tmp"), leave(Path(store.root), 4)]
    stay = [
        leave(Path(store.root), 9),
        leave(Path(store.root), 5),
        leave(Path(store.root), 2, "notes.pt"),
        leave(Path(store.root), 4, "model.tmp"),
    ]
    store = CheckpointStore(store.root)
    store.save(5, {"step": 5})
    assert [path for path in gone if path.exists()] == []
    assert [path for path in stay if not path.exists()] == []
    assert store.steps() == [1, 2, 3, 5]
    assert store.load(2)["step"] == 2


class Slow(OrderedDict[str, int]):
    """Content whose pickling waits until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.go_on = threading.Event(), threading.Event()

    def __reduce__(self) -> Any:
        self.started.set()
        assert self.go_on.wait(10)
        return OrderedDict, ()


def test_a_slow_save_in_another_thread_is_left_alone(tmp_path: Path) -> None:
    slow, store = Slow(), CheckpointStore(tmp_path, keep=2)
    thread = threading.Thread(target=CheckpointStore(tmp_path, verify=False).save, args=(1, slow))
    thread.start()
    assert slow.started.wait(10)
    store.save(2, {"step": 2})
    assert store.steps() == [2]
    slow.go_on.set()
    thread.join()
    assert store.steps() == [1, 2]
    assert store.load(1) == {}
    assert not checkpoint._writing


@pytest.mark.parametrize("steps", [[5] * 8, list(range(8))], ids=["one step", "a step each"])
def test_threads_may_save_at_once(tmp_path: Path, steps: list[int]) -> None:
    barrier = threading.Barrier(len(steps))
    errors: list[CheckpointError] = []

    def save(step: int) -> None:
        barrier.wait()
        try:
            for _ in range(5):
                CheckpointStore(tmp_path).save(step, {"step": step, "thread": threading.get_ident()})
        except CheckpointError as error:
            errors.append(error)

    threads = [threading.Thread(target=save, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store = CheckpointStore(tmp_path)
    assert errors == []
    assert [store.load(step)["step"] for step in store.steps()] == sorted(set(steps))
    store.save(99, {})
    assert len(files(tmp_path)) == 2 * len(store.steps())


def test_a_reader_sees_whole_checkpoints_in_order_while_a_writer_prunes(tmp_path: Path) -> None:
    enough, store = threading.Event(), CheckpointStore(tmp_path, keep=1)
    store.save(0, {"step": 0})

    def write() -> None:
        for step in itertools.count(1):
            for _ in range(2):
                store.save(step, {"step": step})
            if enough.is_set():
                return

    thread = threading.Thread(target=write)
    thread.start()
    seen: list[int] = []
    try:
        while len(set(seen)) < 10:
            latest = CheckpointStore(tmp_path).latest()
            assert latest is not None
            seen.append(latest["step"])
    finally:
        enough.set()
        thread.join()
    assert seen == sorted(seen)


# Storage that fails while writing.


@contextlib.contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """Let the operating system refuse every byte of a file beyond `size`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("step", [3, 4])
@pytest.mark.parametrize("size", [0, 1, 100, 5_000, 20_000, 21_000])
def test_a_file_that_cannot_grow_leaves_everything_as_it_was(store: CheckpointStore, step: int, size: int) -> None:
    store, before = CheckpointStore(store.root, keep=1), files(store.root)
    with files_at_most(size), pytest.raises(CheckpointError, match=rf"(?s)step {step} was not saved.*Mend") as caught:
        store.save(step, content(step, 1))
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EFBIG
    assert files(store.root) == before
    store.save(step, content(step, 1))
    assert found(store.root) == (step, 1)
    assert store.steps() == [step]


@pytest.mark.parametrize(("number", "saved"), [(errno.EINVAL, True), (errno.ENOTSUP, True), (errno.EIO, False)])
def test_a_directory_that_cannot_be_synced_is_an_error_only_if_it_could_be(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, number: int, saved: bool
) -> None:
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    assert (error_of(lambda: store.save(4, content(4))) is None) == saved
    assert found(store.root) == ((4, 0) if saved else (3, 0))


if __name__ == "__main__":
    sys.stdout.write(str(save_under_fire(sys.argv[1])))
