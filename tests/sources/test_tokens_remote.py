"""Tokens and Parquet in an object store: by the S3 protocol from moto's server, and in memory, counted by request."""

from __future__ import annotations

import json
import os
import pickle
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import fsspec
import numpy as np
import pytest
import s3fs
from fsspec.implementations.memory import MemoryFileSystem
from parquet_files import plain
from parquet_files import write as write_parquet
from s3_server import moto_server, options
from test_token_files import LENGTHS, TOKENS, write_megatron
from torch.utils.data import DataLoader

import resumable
from resumable.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def put(folder: str, *paths: Path, **storage: Any) -> None:
    system, root = fsspec.url_to_fs(folder, **storage)
    for path in paths:
        system.pipe_file(f"{root}/{path.name}", path.read_bytes())


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A folder in memory with each kind of file of tokens."""
    folder = f"memory:///tokens-{uuid4().hex}"
    np.save(tmp_path / "train.npy", TOKENS)
    np.save(tmp_path / "lengths.npy", np.array(LENGTHS))
    TOKENS.tofile(tmp_path / "train.bin")
    write_megatron(tmp_path)
    put(folder, *tmp_path.iterdir())
    yield folder
    fsspec.filesystem("memory").rm(folder, recursive=True)


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many ranges are asked for by each request for ranges."""
    asked: list[int] = []
    whole = MemoryFileSystem.cat_ranges

    def count(self: Any, paths: Any, *given: Any, **more: Any) -> Any:
        asked.append(len(paths))
        return whole(self, paths, *given, **more)

    monkeypatch.setattr(MemoryFileSystem, "cat_ranges", count)
    return asked


@pytest.mark.parametrize("name", ["train.bin", "train.npy", "corpus.bin"])
def test_remote_tokens_are_those_of_a_local_file(name: str, url: str, tmp_path: Path) -> None:
    local, remote = resumable.Tokens(tmp_path / name, 64), resumable.Tokens(f"{url}/{name}", 64)
    assert remote.fingerprint() == local.fingerprint()
    copied = pickle.loads(pickle.dumps(remote))  # noqa: S301  # our own
    for one in (remote, copied):
        assert [[part.tolist() for part in sample] for sample in one] == [
            [part.tolist() for part in sample] for sample in local
        ]
    assert [part.dtype for part in remote[0]] == [np.int64, np.int64]


@pytest.mark.parametrize("how", ["flat", "concat", "fit"])
@pytest.mark.parametrize(("name", "documents"), [("train.npy", "lengths.npy"), ("corpus.bin", None)])
def test_remote_documents_are_packed_as_local_ones(
    how: Any, name: str, documents: Any, url: str, tmp_path: Path
) -> None:
    def make(folder: Any) -> Any:
        lengths = None if documents is None else f"{folder}/{documents}"
        return resumable.Packed(f"{folder}/{name}", 50, documents=lengths, how=how, block=2)

    local, remote = make(tmp_path), make(url)
    assert remote.fingerprint() == local.fingerprint()
    for mine, theirs in zip(remote, local, strict=True):
        assert {key: value.tolist() for key, value in mine.items()} == {
            key: value.tolist() for key, value in theirs.items()
        }
    loader = resumable.wrap(remote, batch_size=4, shuffle=True, seed=1)
    expected = resumable.wrap(local, batch_size=4, shuffle=True, seed=1)
    for mine, theirs in zip(loader.steps(9), expected.steps(9), strict=True):
        assert [one["input"].tolist() for one in mine] == [one["input"].tolist() for one in theirs]
    system, root = fsspec.url_to_fs(url)
    assert not [path for path in system.ls(root, detail=False) if "packed" in path], "sidecars are local"


def test_a_sample_is_one_range_and_a_batch_one_request(url: str, ranges: list[int]) -> None:
    tokens = resumable.Tokens(f"{url}/train.npy", 64)
    ranges.clear()
    tokens[3]
    assert ranges == [1]
    loader = resumable.wrap(tokens, batch_size=5, shuffle=True)
    ranges.clear()
    list(loader)
    assert ranges == [5, 5, 5]
    packed = resumable.Packed(f"{url}/train.npy", 50, documents=f"{url}/lengths.npy", how="fit")
    loader = resumable.wrap(packed, batch_size=5, shuffle=True)
    packed[0]  # lengths
    ranges.clear()
    list(loader)
    assert len(ranges) == len(packed) // 5


@pytest.mark.parametrize(
    ("name", "cut", "message"),
    [
        ("none.bin", None, "the file memory://.*none.bin does not exist"),
        ("none.npy", None, "the file memory://.*none.npy does not exist"),
        ("train.bin", -1, "train.bin has 1999 bytes, which is not a multiple of 2 bytes for dtype uint16"),
        ("train.npy", -2, "train.npy is truncated: it must have 2128 bytes, but has 2126"),
        ("train.npy", 60, "train.npy is not a .npy file, or its header is truncated"),
        ("corpus.bin", -2, r"end of the tokens in the index: byte 2000\n  size of memory://.*corpus.bin: 1998 bytes"),
        ("corpus.idx", 60, "corpus.idx is truncated"),
    ],
)
def test_a_remote_file_that_is_cut_or_missing_is_refused_by_name(name: str, cut: Any, message: str, url: str) -> None:
    system, root = fsspec.url_to_fs(url)
    if cut is not None:
        system.pipe_file(f"{root}/{name}", system.cat_file(f"{root}/{name}")[:cut])
    with pytest.raises(ConfigurationError, match=message):
        resumable.Packed(f"{url}/{name}".replace(".idx", ".bin"), 50)


def test_a_remote_file_that_is_written_again_is_refused_by_name(url: str, tmp_path: Path) -> None:
    pickled = pickle.dumps(resumable.Tokens(f"{url}/train.bin", 64))
    TOKENS[::-1].tofile(tmp_path / "train.bin")
    put(url, tmp_path / "train.bin")
    with pytest.raises(DataError, match=r"train.bin was rewritten since it was opened"):
        pickle.loads(pickled)[0]  # noqa: S301  # our own


# ---------------------------------------------------------------------- from S3


@pytest.fixture(scope="module")
def bucket() -> Iterator[tuple[str, dict[str, Any]]]:
    """A bucket of a server of its own, and the options of its file system."""
    with ExitStack() as stack:
        storage = options(stack.enter_context(moto_server()))
        s3fs.S3FileSystem(**storage).call_s3("create_bucket", Bucket="data")
        yield "s3://data/train", storage


def sources(folder: Any, storage: Any) -> dict[str, Any]:
    return {
        "tokens": resumable.Tokens(f"{folder}/train.bin", 32, storage_options=storage),
        "packed": resumable.Packed(
            f"{folder}/train.bin", 32, documents=f"{folder}/lengths.npy", how="fit", storage_options=storage
        ),
        "parquet": resumable.Parquet(f"{folder}/part-{{000..002}}.parquet", storage_options=storage, transform=plain),
    }


def wrapped(source: Any, workers: int = 0) -> resumable.Loader[Any]:
    loader: DataLoader[Any] = DataLoader(source, batch_size=6, num_workers=workers, collate_fn=repr)
    return resumable.wrap(loader, shuffle="blocks" if isinstance(source, resumable.Parquet) else None, seed=3)


def killed(source: Any, folder: Path, steps: int) -> None:
    """Go on from what was saved, read a batch in workers, save and end by SIGKILL."""
    loader, place = wrapped(source, 2), folder / "state.json"
    if place.exists():
        loader.load_state_dict(json.loads(place.read_text()))
    for batch in loader.steps(steps):
        with (folder / "read").open("a") as log:
            log.write(json.dumps(batch) + "\n")
        place.write_text(json.dumps(loader.state_dict()))
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["parquet", pytest.param("tokens", marks=pytest.mark.long), pytest.param("packed", marks=pytest.mark.long)]
)
def test_killed_after_each_step_from_a_bucket(name: str, bucket: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    """A run from a bucket that is killed after each step reads the same.

    With two workers, in forks of a process that has read from the bucket.
    """
    folder, storage = bucket
    local = tmp_path / "local"
    local.mkdir()
    TOKENS.tofile(local / "train.bin")
    np.save(local / "lengths.npy", np.array(LENGTHS))
    write_parquet(local)
    put(folder, *local.iterdir(), **storage)
    expected = list(wrapped(sources(local, None)[name]).steps(8))
    source = sources(folder, storage)[name]
    assert list(wrapped(source).steps(3)) == expected[:3]
    for _ in range(8):
        child = os.fork()
        if not child:
            killed(source, tmp_path, 8)
            os._exit(1)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert [json.loads(line) for line in (tmp_path / "read").read_text().splitlines()] == expected
