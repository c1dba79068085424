"""Shards in an object store: by the S3 protocol from moto's server, and in memory, where requests are counted."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import fsspec
import pytest
from counted_files import Counted, ranges_of
from fsspec.implementations.memory import MemoryFileSystem
from s3_server import Proxy, moto_server, options
from tar_files import classes, write_images
from torch.utils.data import DataLoader

import resumable
from resumable.errors import ConfigurationError, DataError, MissingDependencyError
from resumable.samplers import Blocks
from resumable.sources._files import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


pytestmark = pytest.mark.filterwarnings("ignore:a window of .* blocks is small:resumable.errors.ShuffleWarning")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A folder in memory with three shards of 80 samples."""
    folder = f"memory:///tars-{uuid4().hex}"
    put(folder, write_images(tmp_path))
    yield folder
    fsspec.filesystem("memory").rm(folder, recursive=True)


def put(folder: str, paths: list[Path], **storage: Any) -> None:
    system, root = fsspec.url_to_fs(folder, **storage)
    for path in paths:
        system.pipe_file(f"{root}/{path.name}", path.read_bytes())


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each kind of request is made of the file system in memory."""
    counted: Counter[str] = Counter()

    def counting(name: str) -> Callable[..., Any]:
        whole = getattr(MemoryFileSystem, name)

        def count(*given: Any, **more: Any) -> Any:
            counted[name] += 1
            return whole(*given, **more)

        return count

    for name in ("cat_file", "info", "_open", "pipe_file", "glob"):
        monkeypatch.setattr(MemoryFileSystem, name, counting(name))
    return counted


def test_shards_of_a_url(url: str, requests: Counter[str]) -> None:
    """Shards of a URL are read by index, with an index beside them."""
    tars = resumable.Tars(f"{url}/train-{{000..002}}.tar")
    assert (tars.shards[1], tars.sizes.tolist()) == (f"{url}/train-001.tar", [40, 7, 33])
    assert [sample["cls"] for sample in tars] == list(range(80))
    system, root = fsspec.url_to_fs(url)
    assert len(system.glob(f"{root}/*.resumable-index")) == 3
    requests.clear()
    again = resumable.Tars(f"{url}/*.tar")
    assert again.fingerprint() == tars.fingerprint()
    assert requests["_open"] == requests["pipe_file"] == 0  # no header of a shard was read
    assert requests["cat_file"] == 3
    copy = pickle.loads(pickle.dumps(again))  # noqa: S301  # our own
    assert [sample["cls"] for sample in copy] == list(range(80))


def test_indices_of_remote_shards_in_a_local_folder(url: str, tmp_path: Path) -> None:
    for _ in range(2):
        tars = resumable.Tars(f"{url}/*.tar", index=tmp_path / "indices")
        assert tars[41]["cls"] == 41
        (tmp_path / "indices").mkdir(exist_ok=True)
    assert len(list((tmp_path / "indices").iterdir())) == 3
    local = resumable.Tars(str(tmp_path / "*.tar"), index=f"{url}/indices")
    assert local.fingerprint() == tars.fingerprint()


def test_a_batch_of_remote_samples_takes_one_request_per_run(url: str, requests: Counter[str]) -> None:
    loader = resumable.wrap(resumable.Tars(f"{url}/*.tar"), batch_size=20)
    requests.clear()
    for batch in loader:
        assert len(batch) == 20
    assert requests["cat_file"] == 5  # four batches, of which one is of two shards
    tars = resumable.Tars(f"{url}/*.tar")
    plain: DataLoader[Any] = DataLoader(tars, batch_size=20, collate_fn=list)  # type: ignore[arg-type]  # no Dataset
    requests.clear()
    assert [sample["cls"] for batch in plain for sample in batch] == list(range(80))
    assert requests["cat_file"] == 5


def test_an_index_that_is_copied_along_is_used(tmp_path: Path, requests: Counter[str]) -> None:
    paths, folder = write_images(tmp_path), f"memory:///tars-{uuid4().hex}"
    local = resumable.Tars(paths)
    put(folder, sorted(tmp_path.iterdir()))
    requests.clear()
    tars = resumable.Tars(f"{folder}/*.tar")
    assert requests["_open"] == requests["pipe_file"] == 0
    assert [sample["cls"] for sample in tars] == list(range(80))
    assert pickle.loads(pickle.dumps(tars))[3]["cls"] == 3  # noqa: S301  # our own
    assert tars.fingerprint() == local.fingerprint()
    put(folder, write_images(tmp_path, first=1)[:1])
    assert resumable.Tars(f"{folder}/*.tar")[0]["cls"] == 1
    assert requests["pipe_file"] == 2  # the shard of this test, and its new index
    fsspec.filesystem("memory").rm(folder, recursive=True)


def test_a_remote_shard_that_was_written_again(url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = resumable.Tars(f"{url}/*.tar")
    pickled, before = pickle.dumps(first), first.fingerprint()
    put(url, write_images(tmp_path, (40, 7, 33), first=100))
    with pytest.raises(DataError, match=rf"{url}/train-001.tar was rewritten since it was opened"):
        pickle.loads(pickled)[41]  # noqa: S301  # our own
    again = resumable.Tars(f"{url}/*.tar")
    assert (again[0]["cls"], again[79]["cls"]) == (100, 179)
    assert again.fingerprint() != before
    assert caplog.text.count("was rewritten since its index") == 3


def test_a_remote_shard_that_is_cut_or_gone_is_refused_by_name(url: str) -> None:
    system, root = fsspec.url_to_fs(url)
    tars = resumable.Tars(f"{url}/*.tar")
    whole = system.cat_file(f"{root}/train-001.tar")
    system.pipe_file(f"{root}/train-001.tar", whole[:6000])
    with pytest.raises(ConfigurationError, match=rf"{url}/train-001.tar, byte \d+: the tar is truncated"):
        resumable.Tars(f"{url}/*.tar")
    with pytest.raises(DataError, match=rf"{url}/train-001.tar was rewritten"):
        pickle.loads(pickle.dumps(tars))[41]  # noqa: S301  # our own
    with pytest.raises(DataError, match=rf"{url}/train-001.tar, bytes .* only \d+ of these"):
        tars[46]
    system.rm_file(f"{root}/train-001.tar")
    with pytest.raises(DataError, match=rf"{url}/train-001.tar, bytes .* the file no longer exists"):
        tars[41]
    with pytest.raises(ConfigurationError, match=rf"the shard {url}/train-001.tar does not exist"):
        resumable.Tars(f"{url}/train-{{000..002}}.tar")
    with pytest.raises(ConfigurationError, match="no file matches"):
        resumable.Tars(f"{url}/none-*.tar")


def test_a_storage_that_fails_is_named_with_the_place(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tars = resumable.Tars(f"{url}/*.tar")
    assert tars[41]["cls"] == 41

    def broken(*_: Any, **__: Any) -> bytes:
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", broken)
    with pytest.raises(DataError, match=rf"{url}/train-001.tar, bytes \d+\.\.\d+ cannot be read: ConnectionResetError"):
        tars[41]


@pytest.mark.usefixtures("without_s3fs")
def test_a_file_system_that_is_missing_is_named() -> None:
    with pytest.raises((MissingDependencyError, ConfigurationError), match="s3://a/b.tar"):
        resumable.Tars("s3://a/b.tar", storage_options={"skip_instance_cache": True, "key": uuid4().hex})


# ---------------------------------------------------------------------- S3


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    with moto_server() as port:
        yield port


def in_s3(storage: dict[str, Any], workers: int = 2, **options: Any) -> resumable.Loader[Any]:
    tars: Any = resumable.Tars("s3://shards/train-{000..002}.tar", storage_options=storage)
    loader: DataLoader[Any] = DataLoader(tars, batch_size=10, num_workers=workers)
    return resumable.wrap(loader, **{"shuffle": "blocks", "seed": 3, **options})


@pytest.mark.slow
def test_shards_in_s3_are_read_in_workers_and_resumed(server: int, tmp_path: Path) -> None:
    import s3fs  # noqa: PLC0415  # it takes a second

    storage = options(server)
    s3fs.S3FileSystem(**storage).call_s3("create_bucket", Bucket="shards")
    paths = write_images(tmp_path)
    put("s3://shards", paths, **storage)
    local = resumable.wrap(resumable.Tars(paths), batch_size=10, shuffle="blocks", seed=3)
    expected = [[sample["cls"] for sample in step] for step in local.steps(20)]
    loader = in_s3(storage)
    found, states = [], []
    for batch in loader.steps(12):
        found.append(batch["cls"].tolist())
        states.append(json.dumps(loader.state_dict()))
    assert found == expected[:12]
    for step, workers in ((3, 0), (8, 2)):
        resumed = in_s3(storage, workers)
        resumed.load_state_dict(json.loads(states[step]))
        assert [batch["cls"].tolist() for batch in resumed.steps(20)] == expected[step + 1 :]
    put("s3://shards", write_images(tmp_path, (40, 7, 33), first=1)[:1], **storage)
    other = in_s3(storage)
    with pytest.raises(resumable.errors.StateMismatchError, match="shards train-000.tar .. train-002.tar"):
        other.load_state_dict(json.loads(states[3]))


# ---------------------------------------------------------------------- blocks that are read ahead


BLOCK, WINDOW = 4, 6


class Read(NamedTuple):
    """Where a test has its shards, its cache, and what was read."""

    folder: Path

    def loader(self, workers: int = 0, **given: Any) -> resumable.Loader[Any]:
        cache = {"cache": self.folder / "cache", "storage_options": {"log": str(self.folder / "log")}, **given}
        tars: Any = resumable.Tars(f"counted://{self.folder}/train-*.tar", **cache)
        loader: DataLoader[Any] = DataLoader(tars, batch_size=8, num_workers=workers, collate_fn=classes)
        return resumable.wrap(loader, sampler=Blocks(tars.sizes, block=BLOCK, window=WINDOW, seed=5))

    def ranges(self) -> list[str]:
        """Return what was read since the last call, without what tells the content of shards when they are opened."""
        return ranges_of(self.folder / "log", above=1024)


@pytest.fixture
def read(tmp_path: Path) -> Read:
    write_images(tmp_path, extra=70_000)
    return Read(tmp_path)


@pytest.fixture
def expected(read: Read) -> list[Any]:
    local: Any = resumable.Tars(str(read.folder / "*.tar"))
    loader = resumable.wrap(local, batch_size=8, sampler=Blocks(local.sizes, block=BLOCK, window=WINDOW, seed=5))
    return [classes(batch) for batch in loader.steps(30)]


def blocks() -> int:
    return Blocks([40, 7, 33], block=BLOCK).blocks


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_each_block_is_read_once_as_one_piece(workers: int, read: Read, expected: list[Any]) -> None:
    assert list(read.loader(workers, cache=None).steps(10)) == expected[:10]
    assert len(read.ranges()) == 60  # neighbours of a batch at once, the others of its 80 samples one by one
    assert list(read.loader(workers).steps(30)) == expected
    ranges = read.ranges()
    assert len(ranges) == len(set(ranges)) == blocks() == 21
    assert list(read.loader(workers).steps(30)) == expected  # a later run finds them
    assert read.ranges() == []


def test_blocks_are_there_before_their_window_begins(read: Read, expected: list[Any]) -> None:
    loader = read.loader()
    iterator = iter(loader.steps(30))
    assert [next(iterator) for _ in range(3)] == expected[:3]  # 24 samples of 6 blocks: the first window
    assert len(read.ranges()) == 12  # and those of the next one
    assert next(iterator) == expected[3]
    assert len(read.ranges()) <= 3  # the third window has begun to come


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_it_resumes_with_blocks_that_are_there_and_without(workers: int, read: Read, expected: list[Any]) -> None:
    loader = read.loader()
    states = [json.dumps(loader.state_dict()) for _ in loader.steps(30)]
    for step in (0, 3, 13, 24):
        for given in ({}, {"cache": read.folder / f"cache-{step}"}):
            resumed = read.loader(workers, **given)
            resumed.load_state_dict(json.loads(states[step]))
            assert list(resumed.steps(30)) == expected[step + 1 :]


@pytest.mark.slow
def test_the_cache_stays_as_small_as_it_is_told_to(read: Read, expected: list[Any]) -> None:
    piece = max(int(line.split()[2]) - int(line.split()[1]) for line in _pieces_of(read))
    for most, reads in ((14 * piece, blocks() * 3 + 10), (3 * piece, 10_000), (1, 10_000)):
        folder = read.folder / f"cache-{most}"
        iterator = iter(read.loader(cache=folder, cache_bytes=most).steps(30))
        found = []
        for batch in iterator:
            found.append(batch)
            assert sum(one.stat().st_size for one in folder.iterdir()) <= most
        assert found == expected
        assert len(read.ranges()) <= reads


def _pieces_of(read: Read) -> list[str]:
    list(read.loader(cache=read.folder / "first").steps(30))
    return read.ranges()


def test_what_killed_processes_left_is_removed_later(read: Read) -> None:
    (read.folder / "cache").mkdir()
    for name, age in ((".old", 4000), ("old.lock", 4000), (".new", 10)):
        (read.folder / "cache" / name).write_bytes(bytes(100))
        os.utime(read.folder / "cache" / name, (time.time() - age,) * 2)
    list(read.loader().steps(3))
    left = {one.name for one in (read.folder / "cache").iterdir() if one.suffix != ".piece"}
    assert left == {".new"}


def test_a_cache_that_cannot_be_written_to_costs_requests_only(read: Read, expected: list[Any]) -> None:
    loader = read.loader()
    shutil.rmtree(read.folder / "cache")  # no lock can be made in it, either
    assert list(loader.steps(30)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["gone", "cut", "zeros", "no folder"])
def test_a_piece_that_is_damaged_is_not_believed(damage: str, read: Read, expected: list[Any]) -> None:
    list(read.loader().steps(30))
    for piece in (read.folder / "cache").glob("*.piece"):
        content = piece.read_bytes()
        piece.unlink()
        if damage != "gone":
            piece.write_bytes(content[:-1] if damage == "cut" else bytes(len(content)))
    if damage == "no folder":
        shutil.rmtree(read.folder / "cache")
        (read.folder / "cache").write_text("")
        with pytest.raises(ConfigurationError, match="cache"):
            read.loader()
        return
    assert list(read.loader().steps(30)) == expected


def test_error_read_ahead_comes_when_needed(read: Read, expected: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in what is read ahead is none before it is needed."""
    loader = read.loader()
    whole, broken = Counted.cat_file, list[str]()

    def cut(self: Counted, path: str, start: int | None = None, end: int | None = None, **given: Any) -> bytes:
        if broken and Path(path).name in broken:
            raise ConnectionResetError(104, "Connection reset by peer")
        return whole(self, path, start, end, **given)

    iterator = iter(loader.steps(30))
    assert next(iterator) == expected[0]
    found: list[Any] = []
    monkeypatch.setattr(Counted, "cat_file", cut)
    broken[:] = ["train-000.tar", "train-001.tar", "train-002.tar"]
    with pytest.raises(DataError, match=r"train-00\d.tar, bytes .* cannot be read: ConnectionResetError"):
        found += iterator
    broken.clear()
    assert list(loader.steps(30)) == expected[1 + len(found) :]


def test_killed_fetch_holds_up_nobody(read: Read, expected: list[Any]) -> None:
    """A process that is killed while it fetches holds up no other one."""
    child = os.fork()
    if not child:
        pieces = read.loader().dataset._reading._pieces
        with ExitStack() as locks:
            assert all(pieces._claim(Part(name, 0, 1), locks) for name in pieces._stamps)
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    pieces = read.loader().dataset._reading._pieces
    with ExitStack() as locks:
        assert all(pieces._claim(Part(name, 0, 1), locks) for name in pieces._stamps)
    assert list(read.loader().steps(30)) == expected


@pytest.mark.slow
def test_in_s3_a_block_is_one_request(server: int, tmp_path: Path) -> None:
    import s3fs  # noqa: PLC0415  # it takes a second

    proxy = Proxy(server)
    try:
        storage = options(proxy.port)
        s3fs.S3FileSystem(**storage).call_s3("create_bucket", Bucket="ahead")
        put("s3://ahead", write_images(tmp_path, extra=70_000), **storage)
        counts = []
        for cache in (None, tmp_path / "cache"):
            tars: Any = resumable.Tars("s3://ahead/*.tar", cache=cache, storage_options=storage)
            loader: DataLoader[Any] = DataLoader(tars, batch_size=8, num_workers=2, collate_fn=classes)
            order = Blocks(tars.sizes, block=BLOCK, window=WINDOW, seed=5)
            before = len(proxy.seen)
            found = list(resumable.wrap(loader, sampler=order).steps(20))
            counts.append(
                sum(one.startswith("GET /ahead/train-") and "index" not in one for one in proxy.seen[before:])
            )
            assert found == [order.indices(step // 10, step % 10 * 8, step % 10 * 8 + 8).tolist() for step in range(20)]
        assert counts[1] == blocks() < counts[0] / 5
    finally:
        proxy.close()
