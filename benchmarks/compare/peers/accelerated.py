"""Accelerate as its example of checkpoints: `save_state`, `load_state`, and `skip_first_batches` in the first epoch."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader

from benchmarks.compare.job import EPOCHS, Images, Job, Setting, seed_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Accelerated"]


class Accelerated(Job):
    """With the sampler whose order Accelerate can repeat."""

    def __init__(self, setting: Setting, folder: str) -> None:
        seed_all(setting.seed)
        self.folder, self.skipped = folder, 0
        self.accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
        data = DataLoader(
            Images(setting.data), batch_size=setting.batch, num_workers=setting.workers, shuffle=setting.shuffle
        )
        self.loader = self.accelerator.prepare(data)

    def loops(self, first: int, step: int) -> Iterator[Iterable[Any]]:
        """Skip what the first epoch has read."""
        for epoch in range(first, EPOCHS):
            self.loader.set_epoch(epoch)
            yield self.accelerator.skip_first_batches(self.loader, step) if epoch == first and step else self.loader

    def state(self) -> Any:
        """Return the folder that has been saved."""
        made = tempfile.mkdtemp(dir=self.folder)
        self.accelerator.save_state(made)
        return {path.name: path.read_bytes() for path in Path(made).iterdir()}

    def load(self, state: Any) -> None:
        """Load the folder."""
        made = Path(tempfile.mkdtemp(dir=self.folder))
        for name, content in state.items():
            (made / name).write_bytes(content)
        self.accelerator.load_state(str(made))
