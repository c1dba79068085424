"""A shuffled stream of Hugging Face's `datasets`, in torchdata's `StatefulDataLoader`, as its documentation says."""

from __future__ import annotations

import warnings
from typing import Any

import datasets
import torch
from datasets.distributed import split_dataset_by_node

from benchmarks.compare.job import Job, Setting, augmented, numbers, seed_all

with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # torchdata 0.11 uses a function that torch 2.11 deprecates
    from torchdata.stateful_dataloader import StatefulDataLoader

__all__ = ["Hugging"]


class Hugging(Job):
    """Eight shards, a shuffle buffer of 24 samples."""

    def __init__(self, setting: Setting, folder: str) -> None:
        del folder
        seed_all(setting.seed)
        data: Any = datasets.Dataset.from_dict({"x": numbers(setting.data)}).to_iterable_dataset(num_shards=8)
        if setting.shuffle:
            # Of 8 shards, 2 fill a buffer together, so up to 4 workers of all ranks have some.
            data = data.shuffle(seed=setting.seed, buffer_size=24, max_buffer_input_shards=2)
        if setting.ranks > 1:
            data = split_dataset_by_node(data, setting.rank, setting.ranks)
        self.data = data.map(_sample)
        options = {"batch_size": setting.batch, "num_workers": setting.workers}
        self.loader = StatefulDataLoader(self.data, collate_fn=_collate, **options)

    def begin(self, epoch: int) -> None:
        """Tell the stream its epoch."""
        self.data.set_epoch(epoch)


def _sample(row: dict[str, Any]) -> Any:
    return {"x": augmented(row["x"])}


def _collate(rows: list[Any]) -> Any:
    return torch.stack([torch.as_tensor(row["x"]) for row in rows])
