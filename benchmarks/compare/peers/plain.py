"""PyTorch's `DataLoader`. It has no state: the script saves its epoch, and starts it over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.compare.job import Images, Job, Setting, Stream, seed_all

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Plain"]


class Plain(Job):
    """With a `DistributedSampler` on several ranks."""

    kind: Any = DataLoader
    distributed: Any = DistributedSampler
    streams: Mapping[str, Any] = {}  # more options for an `IterableDataset`

    def __init__(self, setting: Setting, folder: str) -> None:
        del folder
        seed_all(setting.seed)
        self.sampler: Any = None
        options: dict[str, Any] = {"batch_size": setting.batch, "num_workers": setting.workers}
        data: Any = Stream() if setting.data == "stream" else Images(setting.data)
        if setting.distributed:
            options["sampler"] = self.sampler = self.distributed(
                data, setting.ranks, setting.rank, shuffle=setting.shuffle, seed=setting.seed
            )
        elif setting.data != "stream":
            options["shuffle"] = setting.shuffle
        self.loader = self.kind(data, **options, **self.streams if setting.data == "stream" else {})

    def begin(self, epoch: int) -> None:
        """Tell the sampler its epoch."""
        if self.sampler is not None:
            self.sampler.set_epoch(epoch)

    def state(self) -> Any:
        """Return nothing."""

    def load(self, state: Any) -> None:
        """Load nothing."""
