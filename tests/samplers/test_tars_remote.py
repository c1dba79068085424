"""Shards in an object store: by the S3 protocol from moto's server, and in memory, where requests are counted."""

from __future__ import annotations

import json
import pickle
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tar_files import write_images
from torch.utils.data import DataLoader

import resumable
from resumable.errors import ConfigurationError, DataError, MissingDependencyError

sys.path.insert(0, str(Path(__file__).parents[1] / "checkpoint"))

from s3_server import moto_server, options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A folder in memory with three shards of 80 samples."""
    folder = f"memory://tars-{uuid4().hex}"
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


def test_shards_of_a_url_are_read_by_index_with_an_index_beside_them(url: str, requests: Counter[str]) -> None:
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
    assert requests["cat_file"] == 4 + 2  # four batches, of which one has parts of three shards
    tars = resumable.Tars(f"{url}/*.tar")
    plain: DataLoader[Any] = DataLoader(tars, batch_size=20, collate_fn=list)  # type: ignore[arg-type]  # no Dataset
    requests.clear()
    assert [sample["cls"] for batch in plain for sample in batch] == list(range(80))
    assert requests["cat_file"] == 6


def test_a_remote_shard_that_was_written_again(url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = resumable.Tars(f"{url}/*.tar")
    pickled, before = pickle.dumps(first), first.fingerprint()
    put(url, write_images(tmp_path, (40, 7, 33), first=100))
    with pytest.raises(DataError, match=rf"{url}/train-001.tar was written again since it was opened"):
        pickle.loads(pickled)[41]  # noqa: S301  # our own
    again = resumable.Tars(f"{url}/*.tar")
    assert (again[0]["cls"], again[79]["cls"]) == (100, 179)
    assert again.fingerprint() != before
    assert caplog.text.count("was written again since its index") == 3


def test_a_remote_shard_that_is_cut_or_gone_is_refused_by_name(url: str) -> None:
    system, root = fsspec.url_to_fs(url)
    tars = resumable.Tars(f"{url}/*.tar")
    whole = system.cat_file(f"{root}/train-001.tar")
    system.pipe_file(f"{root}/train-001.tar", whole[:6000])
    with pytest.raises(ConfigurationError, match=rf"{url}/train-001.tar, byte \d+: the tar was cut"):
        resumable.Tars(f"{url}/*.tar")
    with pytest.raises(DataError, match=rf"{url}/train-001.tar was written again"):
        tars[41]
    system.rm_file(f"{root}/train-001.tar")
    with pytest.raises(DataError, match=rf"{url}/train-001.tar, bytes .* there is no such file any more"):
        tars[41]
    with pytest.raises(ConfigurationError, match=rf"there is no shard {url}/train-001.tar"):
        resumable.Tars(f"{url}/train-{{000..002}}.tar")
    with pytest.raises(ConfigurationError, match="there is no file for"):
        resumable.Tars(f"{url}/none-*.tar")


def test_a_storage_that_fails_is_named_with_the_place(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tars = resumable.Tars(f"{url}/*.tar")
    assert tars[41]["cls"] == 41

    def broken(*_: Any, **__: Any) -> bytes:
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", broken)
    with pytest.raises(DataError, match=rf"{url}/train-001.tar, bytes \d+\.\.\d+ cannot be read: ConnectionResetError"):
        tars[41]


def test_a_file_system_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
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
