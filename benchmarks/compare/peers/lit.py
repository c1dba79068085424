"""LitData's `StreamingDataset` over local chunks, in its `StreamingDataLoader`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import litdata
from litdata.streaming.cache import Cache

from benchmarks.compare.job import Job, Setting, augmented, numbers, seed_all

__all__ = ["Lit"]


class _Images(litdata.StreamingDataset):  # type: ignore[misc]  # it has no types
    def __getitem__(self, index: Any) -> Any:
        return augmented(super().__getitem__(index))


class Lit(Job):
    """Chunks of 12 samples."""

    def __init__(self, setting: Setting, folder: str) -> None:
        seed_all(setting.seed)
        files = Path(folder, setting.data)
        if setting.rank == 0 and not files.exists():
            unfinished = files.with_suffix(".part")
            cache = Cache(str(unfinished), chunk_size=12)
            for index, number in enumerate(numbers(setting.data)):
                cache[index] = number
            cache.done()
            cache.merge()
            unfinished.rename(files)
        while not files.exists():
            time.sleep(0.05)
        data = _Images(input_dir=str(files), shuffle=setting.shuffle, seed=setting.seed, drop_last=True)
        self.loader = litdata.StreamingDataLoader(data, batch_size=setting.batch, num_workers=setting.workers)
