"""This package: `wrap`, and the class that replaces torchdata's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

import resumable
import resumable.torch
from benchmarks.compare.job import EPOCHS, Images, Job, Setting, Stream, seed_all
from benchmarks.compare.peers.plain import Plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["DropIn", "Wrapped"]


class Wrapped(Job):
    """A wrapped `DataLoader`, which finds its rank itself and counts epochs."""

    def __init__(self, setting: Setting, folder: str) -> None:
        del folder
        seed_all(setting.seed)
        options: dict[str, Any] = {"batch_size": setting.batch, "num_workers": setting.workers}
        if setting.data == "stream":
            self.loader = resumable.wrap(DataLoader(Stream(), **options), seed=setting.seed, streams=2)
        else:
            data = Images(setting.data)
            self.loader = resumable.wrap(DataLoader(data, shuffle=setting.shuffle, **options), seed=setting.seed)

    def loops(self, first: int, step: int) -> Iterator[Iterable[Any]]:
        """Yield the epochs that are left: the loader knows them."""
        del first, step
        yield from self.loader.epochs(EPOCHS)


class DropIn(Plain):
    """The script of the `DataLoader`, with `resumable.torch.StatefulDataLoader`."""

    kind: Any = resumable.torch.StatefulDataLoader
    streams: Mapping[str, Any] = {"streams": 2}
    state = Job.state
    load = Job.load
