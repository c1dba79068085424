"""LanceDB's `StreamingDataset` over a local table, in its `StreamingDataLoader`; each epoch has its own."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lancedb
from lancedb.streaming import StreamingDataLoader, StreamingDataset

from benchmarks.compare.job import EPOCHS, Job, Setting, augmented, numbers, seed_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Lance"]

SPLITS = 8  # a step of all ranks and workers takes as much from each
multiprocessing.set_forkserver_preload(["lancedb.streaming"])  # once for all workers of a process


class Lance(Job):
    """The table is shuffled by row."""

    def __init__(self, setting: Setting, folder: str) -> None:
        seed_all(setting.seed)
        self.setting = setting
        files = Path(folder, setting.data.replace(" ", "-"))
        database = lancedb.connect(str(files))
        if setting.rank == 0 and not (files / "ready").exists():
            database.create_table("images", [{"x": number} for number in numbers(setting.data)])
            (files / "ready").touch()
        while not (files / "ready").exists():
            time.sleep(0.05)
        self.table = database.open_table("images")
        self.epoch, self.data = 0, self.made(0)

    def made(self, epoch: int) -> Any:
        """Return the data of an epoch."""
        setting = self.setting
        return StreamingDataset(
            self.table,
            num_splits=SPLITS,
            shuffle=setting.shuffle,
            shuffle_seed=setting.seed,
            epoch=epoch,
            rank=setting.rank,
            world_size=setting.ranks,
            transform=_samples,
        )

    def loops(self, first: int, step: int) -> Iterator[Iterable[Any]]:
        """Read the data of the epoch that was loaded, and make the data of the next ones."""
        del first, step
        options: dict[str, Any] = {"batch_size": self.setting.batch, "num_workers": self.setting.workers}
        if self.setting.workers:
            options["multiprocessing_context"] = "forkserver"  # it has threads, so its forked workers crash
        while self.epoch < EPOCHS:
            yield StreamingDataLoader(self.data, **options)
            self.epoch += 1
            self.data = self.made(self.epoch)

    def state(self) -> Any:
        """Return the state of the data."""
        return self.data.state_dict()

    def load(self, state: Any) -> None:
        """Load it into the data of its epoch."""
        if state["epoch"] != self.epoch:
            self.epoch, self.data = state["epoch"], self.made(state["epoch"])
        self.data.load_state_dict(state)

    def load_ranks(self, states: list[Any], setting: Setting) -> None:
        """Load the states of all ranks as one."""
        del setting
        self.load(StreamingDataset.merge_state_dicts(states) if len(states) > 1 else states[0])


def _samples(batch: Any) -> list[Any]:
    return [augmented(row["x"]) for row in batch.to_pylist()]
