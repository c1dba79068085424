"""CheckpointStore in an object store, and faults in it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import warnings
from typing import TYPE_CHECKING, Any, ClassVar

import fsspec
import pytest
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from stores import LEFTOVER, content, error_of, found

from resumable.checkpoint import CheckpointStore
from resumable.errors import CheckpointError, CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator


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
TOKENS = 1  # of the writer


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
    assert len(bucket) == 4 + TOKENS


def test_a_cached_listing_hides_nothing(bucket: dict[str, bytes]) -> None:
    reader = CheckpointStore(URL)
    assert reader.steps() == [1, 2, 3]
    CheckpointStore(URL, keep=1).save(4, content(4))
    assert reader.steps() == [4]
    assert reader.latest_step() == 4


@pytest.mark.slow
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
        assert len(bucket) - TOKENS == 2 * len(store.steps()) == 4
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
        assert f"step {step} was saved" in str(warning.message)
        assert "tries again" in str(warning.message)
    return "saved"


def fault_fired(fail_at: int, fault: str, step: int, before: dict[str, bytes]) -> bool:
    """Return whether a save makes so many requests, by doing it again without a fault."""
    Bucket.objects.clear()
    Bucket.objects.update(before)
    store = faulty(0, fault)
    store.save(step, content(step, 1))
    return bool(store._steps.files.filesystem.count >= fail_at)


@pytest.mark.parametrize("fault", ["lost", "outage"])
def test_fault_while_reading(bucket: dict[str, bytes], fault: str) -> None:
    """A fault while reading is no corruption and no first start."""
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


def test_a_truncated_upload_is_not_committed(bucket: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BucketFile, "_initiate_upload", lambda file: setattr(file, "parts", Forgetful()))
    with pytest.raises(CheckpointError, match=r"(?s)step 4 was not saved.*has \d+ bytes after \d+ bytes were written"):
        CheckpointStore(URL).save(4, content(4))
    assert found(URL) == (3, 0)


class Forgetful(list[bytes]):
    """Loses all parts but the last."""

    def append(self, part: bytes) -> None:
        self[:] = [part]
