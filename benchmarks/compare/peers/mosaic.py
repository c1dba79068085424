"""MosaicML's `StreamingDataset` over local shards, in its `StreamingDataLoader`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

from benchmarks.compare.job import Job, Setting, augmented, numbers, seed_all

__all__ = ["Mosaic"]


class _Images(StreamingDataset):  # type: ignore[misc]  # it has no types
    def __getitem__(self, index: Any) -> Any:
        return augmented(super().__getitem__(index)["x"])


class Mosaic(Job):
    """Sixteen shards or more."""

    def __init__(self, setting: Setting, folder: str) -> None:
        seed_all(setting.seed)
        files = Path(folder, setting.data)
        if setting.rank == 0 and not files.exists():
            unfinished = files.with_suffix(".part")
            with MDSWriter(out=str(unfinished), columns={"x": "int"}, size_limit=400) as writer:
                for number in numbers(setting.data):
                    writer.write({"x": number})
            unfinished.rename(files)
        while not files.exists():
            time.sleep(0.05)
        options = {"shuffle": setting.shuffle, "shuffle_seed": setting.seed, "batch_size": setting.batch}
        data = _Images(local=str(files), num_canonical_nodes=2, **options)
        self.loader = StreamingDataLoader(data, batch_size=setting.batch, num_workers=setting.workers)
