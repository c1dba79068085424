"""WebDataset over local tar files. It has no state: the script saves its epoch, and starts it over."""

from __future__ import annotations

import io
import tarfile
import time
from pathlib import Path
from typing import Any

import torch
import webdataset

from benchmarks.compare.job import Job, Setting, augmented, numbers, seed_all

__all__ = ["Web"]

SHARDS = 8


class Web(Job):
    """Shards in random order, a shuffle buffer of 24 samples."""

    def __init__(self, setting: Setting, folder: str) -> None:
        seed_all(setting.seed)
        files = Path(folder, setting.data)
        if setting.rank == 0 and not files.exists():
            unfinished = files.with_suffix(".part")
            _write(unfinished, numbers(setting.data))
            unfinished.rename(files)
        while not files.exists():
            time.sleep(0.05)
        shards = [str(path) for path in sorted(files.glob("*.tar"))]
        data = webdataset.WebDataset(
            shards,
            shardshuffle=SHARDS if setting.shuffle else False,
            nodesplitter=webdataset.split_by_node,
            seed=setting.seed,
        )
        if setting.shuffle:
            data = data.shuffle(24)
        batches = data.map(_sample).batched(setting.batch, collation_fn=torch.utils.data.default_collate)
        self.loader = webdataset.WebLoader(batches, batch_size=None, num_workers=setting.workers)

    def state(self) -> Any:
        """Return nothing."""

    def load(self, state: Any) -> None:
        """Load nothing."""


def _write(folder: Path, found: list[int]) -> None:
    folder.mkdir()
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for index in range(shard, len(found), SHARDS):
                data = str(found[index]).encode()
                member = tarfile.TarInfo(f"{index:08}.cls")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def _sample(found: dict[str, Any]) -> Any:
    return augmented(int(found["cls"]))
