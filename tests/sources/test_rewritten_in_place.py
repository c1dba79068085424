"""A file that is written again in place while it is read: the next read raises, though its handle stays open."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tar_files import write
from torch.utils.data import DataLoader

import resumable
from resumable.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path

FORMS = ["tar", "tokens", "lengths", "parquet"]


def written(folder: Path, form: str, value: int) -> Any:
    """Write a file of the same size and structure, whatever the value, and return a source that reads it."""
    if form == "tar":
        return resumable.Tars(shard(folder, value), transform=lambda sample: int(sample["txt"]))
    if form == "parquet":
        pq.write_table(pa.table({"x": [value] * 20}), folder / "a.parquet", row_group_size=1, compression=None)
        return resumable.Parquet(folder / "a.parquet", cache_bytes=1, transform=lambda row: row["x"])
    if form == "tokens":
        np.full(201, value, np.uint16).tofile(folder / "a.bin")
        return resumable.Tokens(folder / "a.bin", 10)
    np.save(folder / "lengths.npy", np.roll([3, 7, 5, 5], value).repeat(5))
    return resumable.Packed(np.arange(100), 5, documents=folder / "lengths.npy", block=2, how="concat", sidecar=False)


def shard(folder: Path, value: int) -> Path:
    return write(folder / "a.tar", [(f"{key:06}.txt", f"{value:05}".encode()) for key in range(20)])


def aged(folder: Path) -> None:
    """Set times that differ from those of a file written in the same instant."""
    for path in folder.iterdir():
        if path.is_file():
            os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", ["same", "shorter"])
def test_the_next_read_raises(form: str, size: str, tmp_path: Path) -> None:
    source = written(tmp_path, form, 1)
    source[0]
    for path in tmp_path.iterdir():
        if path.is_file():
            content = path.read_bytes()
            with path.open("wb") as file:  # the same file
                file.write(content if size == "same" else content[: len(content) // 2])
    aged(tmp_path)
    with pytest.raises(DataError, match=r"rewritten since it was opened|was truncated since it was opened"):
        source[len(source) - 1]


@pytest.mark.parametrize("workers", [0, 1])
def test_no_sample_of_the_new_shard_is_delivered(workers: int, tmp_path: Path) -> None:
    source = written(tmp_path, "tar", 1)
    loader = resumable.wrap(
        DataLoader(source, batch_size=4, num_workers=workers, prefetch_factor=1 if workers else None),
        shuffle="blocks",
        seed=0,
    )
    got = []
    with pytest.raises(DataError, match=r"was (rewritten|truncated) since it was opened"):
        for batch in loader.steps(10):
            got += batch.tolist()
            if len(got) == 8:
                shard(tmp_path, 2)
                os.utime(tmp_path / "a.tar", ns=(1, 1))
    assert set(got) == {1}


def test_a_shard_replaced_by_another_file_is_read_to_its_end(tmp_path: Path) -> None:
    """Its handle stays on the old one, so nothing is mixed."""
    source = written(tmp_path, "tar", 1)
    source[0]
    new = tmp_path / "new"
    new.mkdir()
    written(new, "tar", 2)
    (new / "a.tar").replace(tmp_path / "a.tar")
    assert list(source) == [1] * 20
